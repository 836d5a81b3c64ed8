"""A pytest plugin: the registry of quota kinds finds the modules of the folder `WEIR_TEST_KINDS` as well.

The folder becomes a part of the package before the package is executed, so that its kinds are found as real ones are.
"""

import os
import sys
from importlib.util import find_spec, module_from_spec

spec = find_spec("gateway.quotas.kinds")
assert spec is not None
assert spec.loader is not None
assert spec.submodule_search_locations is not None
assert spec.name not in sys.modules, "the registry was loaded before this plugin"
spec.submodule_search_locations.append(os.environ["WEIR_TEST_KINDS"])
package = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(package)
