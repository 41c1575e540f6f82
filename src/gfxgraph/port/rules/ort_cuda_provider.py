"""ONNX Runtime asked for CUDA's execution provider by name."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX516",
    code="ort-cuda-provider",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "ONNX Runtime asked for CUDA's execution provider by name",
        "{name}",
        "ROCm builds of ONNX Runtime have MIGraphXExecutionProvider (and, up to 1.22, ROCMExecutionProvider); the CUDA and TensorRT ones are absent, and the session falls back to the CPU with a warning.",
        "Choose from onnxruntime.get_available_providers(), and treat the ROCm providers wherever CUDA's is treated.",
    ),
    zh=Text(
        "按名称要求 ONNX Runtime 的 CUDA 执行提供程序",
        "{name}",
        "ROCm 版 ONNX Runtime 提供 MIGraphXExecutionProvider（1.22 及以前还有 ROCMExecutionProvider），没有 CUDA 与 TensorRT 的；会话只给出警告便退回 CPU。",
        "从 onnxruntime.get_available_providers() 中选择；凡处理 CUDA 提供程序之处，同样处理 ROCm 的。",
    ),
    bad='import onnxruntime as ort\n\nsession = ort.InferenceSession("m.onnx", providers=["CUDAExecutionProvider"])\n',
    good='import onnxruntime as ort\n\nsession = ort.InferenceSession("m.onnx", providers=ort.get_available_providers())\n',
    needs=(
        "cudaexecutionprovider",
        "tensorrtexecutionprovider",
        "executionprovider_cuda",
        "ortcudaprovider",
        "ortsessionoptionsappend",
    ),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if is_test_file(f.path):
        return
    found = []
    for node in f.nodes(ast.Constant):
        if node.value in ("CUDAExecutionProvider", "TensorrtExecutionProvider") and not f.is_docstring(node):
            statement = f.statement(node)
            text = f.source(statement.test if isinstance(statement, ast.If) else statement) if statement else ""
            if not re.search(r"ROCM|MIGraphX", text):
                found.append(hit(node, name=str(node.value)))
    yield from once_a_line(found)


_CPP = re.compile(
    r"\b(?:Create|Release|Update)?(?:OrtCUDAProviderOptions|OrtTensorRTProviderOptions|CUDAProviderOptions)\w*|"
    r"\w*Append(?:Session)?ExecutionProvider_(?:CUDA|TensorRT)\w*|\"(?:CUDA|Tensorrt)ExecutionProvider\""
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for number, line in enumerate(f.code.split("\n"), 1):
        if (match := _CPP.search(line)) and not re.search(r"ROCM|MIGraphX", line):
            yield line_hit(number + f.offset, match.start(), name=match.group())
