"""Cells of CSV files that a spreadsheet reads as they are: no text becomes a formula, and numbers have no exponent."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, StringType

CSV_OPTIONS: Final = {
    "header": "true",
    # Spreadsheets know doubled quotes (RFC 4180), not Spark's backslashes.
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
_SIGN: Final = r"[=+\-@\uFF1D\uFF0B\uFF0D\uFF20]"
_FORMULA: Final = rf"^\s*{_SIGN}|^[\t\r\n]"
"""Clients choose their names, and a spreadsheet runs a text that begins like this. The last four are full-width forms."""
_LATER_FORMULA: Final = rf'(?<![\s;|"])(?=[ \x0B\f"]*[;|\t\r\n])[\s;|"]++(?={_SIGN})'
"""The end of a part of a text, before a part that is a formula. Spreadsheets of some countries split lines at `;`, and the
import of a file also at tabs and `|`. A quote that does not begin a cell then protects no line break."""


def cells(rows: DataFrame) -> DataFrame:
    """The same rows. An apostrophe before a dangerous text, or before such a part of it, makes it a plain text."""
    return rows.select(*_cells(rows))


def csv_line(rows: DataFrame) -> Column:
    """The line that each row has in a CSV file of its `cells`."""
    return F.to_csv(F.struct(*_cells(rows)), CSV_OPTIONS)


def _cells(rows: DataFrame) -> Sequence[Column]:
    return [_cell(field.name, field.dataType) for field in rows.schema]


def _cell(name: str, of: DataType) -> Column:
    column = F.col(name)
    if isinstance(of, StringType):
        text = F.regexp_replace(name, _LATER_FORMULA, "$0'")
        return F.when(F.regexp_like(name, F.lit(_FORMULA)), F.concat(F.lit("'"), text)).otherwise(text).alias(name)
    if isinstance(of, DoubleType):
        plain = F.regexp_replace(F.format_string("%.6f", name), r"\.?0+$", "")
        return F.when(column.isNotNull(), plain).alias(name)
    return column
