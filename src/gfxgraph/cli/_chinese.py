"""What ``gfxgraph --help`` says in Chinese: each command in a line; options keep their English help."""

from __future__ import annotations

GROUP = (
    "让 AMD GPU 上的 GPU 图可以放心使用。\n\n"
    "退出状态：0 正常，1 有发现，2 无法完成，130 被 Ctrl-C 停止；run 的状态就是程序的状态。"
    "每个命令都接受 --help；中文说明见 docs/GUIDE_zh.md。"
)
SUMMARIES = {
    "bench": "比较 eager、图和编译的耗时，使用内置负载或你的函数。",
    "bisect": "找出图无法容纳或算错的操作，并写出能重现它的脚本。",
    "check": "在本机试一次捕获和重放；或者不用 GPU，列出函数中会中断或切分捕获的地方。",
    "demo": "运行示例：显示文本、速度、图、回退和结论。",
    "device": "显示本机的 GPU：架构、内存、已知问题。",
    "doctor": "检查安装、驱动和设备；--selftest 运行安全测试集。",
    "env": "status 的旧名。",
    "explain": "用文字解释 ROCm、PyTorch 或引擎的错误。",
    "port": "审计 CUDA 代码，列出并修改移植到 ROCm 所需的地方。",
    "report": "把进程留下的数据做成一个离线 HTML 页面。",
    "run": "运行脚本、模块或命令，在它的所有进程中让图变得安全。",
    "status": "显示已安装的内容：设置、PyTorch、GPU、引擎，供报告粘贴。",
    "top": "观察运行中的进程：多少工作在图中，哪些行在图外执行。",
}
