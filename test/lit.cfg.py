# Text tests: the first lines of a file say how it is run, CHECK lines what is
# proved. Run by scripts/check, by `ninja check-lit`, or for one folder:
#   /usr/lib/llvm-22/bin/lit -v build/release/test --filter=<path>
import os

import lit.formats
import lit.util

config.name = "merak"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test", ".onnxtxt", ".textproto", ".pbtxt"]
config.excludes = ["Inputs", "data", "unit", "unit-compiler", "e2e", "docs",
                   "layering"]
config.test_source_root = os.path.dirname(__file__)

if not hasattr(config, "merak_tools_dir"):
    lit_config.fatal("run lit on the build folder's test/, not on the source's")
config.test_exec_root = os.path.join(config.merak_build_dir, "test", "lit-out")

for folder in (config.llvm_tools_dir, config.merak_tools_dir):
    config.environment["PATH"] = os.pathsep.join(
        [folder, config.environment["PATH"]])
config.substitutions.append(("%data", os.path.join(config.test_source_root, "data")))
config.substitutions.append(("%samples", os.path.join(
    os.path.dirname(config.test_source_root), "samples")))

config.substitutions.append(("%tools", config.merak_tools_dir))

# A test says "REQUIRES: merak-opt" when it needs a tool that not every build
# has.
for tool in ("merakc", "merak-opt", "merak-run", "merak-plan"):
    if lit.util.which(tool, config.merak_tools_dir):
        config.available_features.add(tool)
if config.merak_compiler:
    config.available_features.add("compiler")
