"""After an unexpected error in a background task, clients are served and the task restarts."""

from tests.gateway.proxy import messages as m
from tests.weir_process import wait_until


def test_thread_shortage_restarts_only_its_task(broker, start_weir, connect, faults):
    """The reloader reads the config in a thread each second. Without a free thread, Python raises RuntimeError."""
    weir = start_weir(broker.bootstrap_servers)
    client = connect(weir)
    client.ask(m.produce(1))
    faults("threads", 1)
    wait_until(lambda: "background task failed" in weir.log() or weir.process.poll() is not None, "a task has failed", 20)
    client.ask(m.produce(2))
    assert weir.metric("weir_task_restarts_total", task="reload the config") == 1
    weir.write_config(weir.config | {"connections": {"drain_seconds": 1}})
    wait_until(lambda: "drain_seconds: 10.0 -> 1.0" in weir.log(), "the config is reloaded", 20)
    weir.log_file.write_text("")  # its traceback was expected
