"""Networks in other frameworks' files: ONNX and PyTorch, and what their readers share.

May import rnn and below.
Start reading: onnx/__init__.py.
"""
