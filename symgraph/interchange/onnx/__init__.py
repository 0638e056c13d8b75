"""Networks in ONNX files (`sg.onnx`). Needs the extra `onnx`, which is imported at the first call.

    sym, arg_params, aux_params = sg.onnx.import_model("net.onnx")

May import interchange and below; this file alone imports converters, which fills their table.
Start reading: importer.py and writing/model.py.
"""

from symgraph.interchange.onnx import converters
from symgraph.interchange.onnx.importer import import_model
from symgraph.interchange.onnx.plans import FilePlan, read_plan
from symgraph.interchange.onnx.writing.model import export_model

assert converters

__all__ = ["FilePlan", "export_model", "import_model", "read_plan"]
