"""Small files on any Hadoop file system. Java reads and writes them in the driver: a Spark job for each would take longer."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyspark.sql import SparkSession


def literal(path: str) -> str:
    """The pattern that matches only this path. Spark takes each path that it reads as a pattern."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


class HadoopFolder:
    """Implements `folders.Folder`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        java: Any = spark.sparkContext
        self._java = java._jvm
        self._path = self._java.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(java._jsc.hadoopConfiguration())

    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    def only_run(self, option: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def names(self) -> Sequence[str]:
        return sorted(self.modified())

    def modified(self) -> Mapping[str, int]:
        if not self.exists():
            return {}
        found = self._files.listStatus(self._path)
        return {status.getPath().getName(): status.getModificationTime() for status in found}

    def lengths(self, pattern: str) -> Mapping[str, int]:
        found = self._files.globStatus(self._java.org.apache.hadoop.fs.Path(literal(self._path.toString()), pattern))
        return {status.getPath().toString(): status.getLen() for status in found}

    def read(self, name: str) -> str:
        stream = self._files.open(self._child(name))
        try:
            text: str = self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        self._files.setWriteChecksum(False)
        stream = self._files.create(self._child(name), True)
        stream.write(bytearray(text.encode("utf-8")))
        stream.close()

    def add(self, name: str, text: str) -> None:
        self.write(f"_{name}.part", text)
        if not self._files.rename(self._child(f"_{name}.part"), self._child(name)):
            raise OSError(f"{self._child(name).toString()} can't be written: the file exists already")

    def add_folder(self, name: str) -> None:
        self._files.mkdirs(self._child(name))

    def delete(self, name: str) -> None:
        self._files.delete(self._child(name), True)

    def _child(self, name: str) -> Any:  # noqa: ANN401 - py4j has no types
        return self._java.org.apache.hadoop.fs.Path(self._path, name)
