"""The mypyc build lies in a folder of its own, is never older than its sources, and works with interpreted code."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType

from gateway.version import weir_build
from loadtest.testkit.compiled_build import BUILD, PACKAGES, compiled_modules
from loadtest.testkit.paths import CHECKOUT

COMPILED = {".".join(module.with_suffix("").parts): module for module in compiled_modules()}


def test_no_extension_lies_beside_a_source() -> None:
    found = [*CHECKOUT.glob("*__mypyc*.so"), *(file for package in PACKAGES for file in (CHECKOUT / package).rglob("*.so"))]
    assert found == [], "`make setup` removes the extensions that older versions left in the checkout"


def test_every_module_is_as_its_source() -> None:
    """In the compiled build, each extension was compiled from the present text of its source."""
    other = []
    for name, module in COMPILED.items():
        file, source = Path(str(importlib.import_module(name).__file__)), CHECKOUT / module
        if weir_build() == "interpreted":
            assert file == source
        elif not file.is_relative_to(BUILD) or file.suffix == ".py" or (BUILD / module).read_text() != source.read_text():
            other.append(name)
    assert other == [], "`make compiled` makes build/compiled current"


def modules() -> list[ModuleType]:
    files = sorted(file.relative_to(CHECKOUT) for package in PACKAGES for file in (CHECKOUT / package).rglob("*.py"))
    names = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files]
    return [importlib.import_module(name) for name in names if "reports.job" not in name and not name.endswith("__main__")]


def test_compiled_and_interpreted_classes_do_not_inherit() -> None:
    """mypyc forbids both. It detects an interpreted subclass only when the gateway creates an object of the class."""
    mixed = []
    for module in modules():
        for name, value in inspect.getmembers(module, inspect.isclass):
            for base in value.__mro__[1:] if value.__module__ == module.__name__ else ():
                ours = base.__module__.partition(".")[0] in PACKAGES and not getattr(base, "_is_protocol", False)
                if ours and (value.__module__ in COMPILED) != (base.__module__ in COMPILED):
                    mixed.append(f"{module.__name__}.{name}({base.__module__}.{base.__name__})")
    assert mixed == [], "list both modules in `[tool.weir] compiled` of pyproject.toml, or neither"
