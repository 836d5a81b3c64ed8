"""The config file: its model, its checks and its messages. `load.load_config` reads it."""
