"""Writing ONNX files: a converter for each operator, and the model that they make together.

May import interchange.onnx and below; its door for users is `sg.onnx.export_model`.
Start reading: model.py.
"""
