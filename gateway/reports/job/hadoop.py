"""Small files on any Hadoop file system, read and written by the driver. A Spark job for each would take seconds to start."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession


class HadoopFolder:
    """A folder by its path; it need not exist."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        java: Any = spark.sparkContext
        self._java = java._jvm
        self._path = self._java.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(java._jsc.hadoopConfiguration())

    def names(self) -> Sequence[str]:
        """The names in the folder, sorted; none if it does not exist."""
        return sorted(self.modified())

    def modified(self) -> Mapping[str, int]:
        """The time of the last change of each file and folder in the folder, in ms since 1970."""
        if not self._files.exists(self._path):
            return {}
        found = self._files.listStatus(self._path)
        return {status.getPath().getName(): status.getModificationTime() for status in found}

    def read(self, name: str) -> str:
        stream = self._files.open(self._child(name))
        try:
            text: str = self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Replace a file. A reader may see a part of the new text."""
        self._files.setWriteChecksum(False)
        stream = self._files.create(self._child(name), True)
        stream.write(bytearray(text.encode("utf-8")))
        stream.close()

    def add(self, name: str, text: str) -> None:
        """Write a new file, which appears whole under its name."""
        self.write(f"_{name}.part", text)
        if not self._files.rename(self._child(f"_{name}.part"), self._child(name)):
            raise OSError(f"{self._child(name).toString()} can't be written: the file exists already")

    def add_folder(self, name: str) -> None:
        """Create a folder in the folder, and the folders above it."""
        self._files.mkdirs(self._child(name))

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its files."""
        self._files.delete(self._child(name), True)

    def _child(self, name: str) -> Any:  # noqa: ANN401 - py4j has no types
        return self._java.org.apache.hadoop.fs.Path(self._path, name)
