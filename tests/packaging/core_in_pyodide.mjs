// Run tests of engine/core under Pyodide, beside a node_modules that holds it: node core_in_pyodide.mjs ROOT FILE...
import { loadPyodide } from "pyodide";

const [root, ...files] = process.argv.slice(2);
const python = await loadPyodide();
python.mountNodeFS("/prep", root);
python.globals.set("files", python.toPy(files));
const status = await python.runPythonAsync(`
import glob, os, sys
sys.dont_write_bytecode = True
sys.path[:] = ["/prep", *sys.path, *glob.glob("/prep/.venv/lib/python3*/site-packages")]  # pytest is pure Python
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
os.chdir("/prep")
import pytest
print(sys.version)
int(pytest.main(["-q", "--noconftest", "-c", "/dev/null", "--rootdir=/prep", "-p", "no:cacheprovider", *files]))
`);
process.exit(status);
