"""Files for code that reads files: in memory, and removed at the end of the process."""

import atexit
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")


def scratch_file(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="weir-fuzzing-", dir=_MEMORY if _MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / name
