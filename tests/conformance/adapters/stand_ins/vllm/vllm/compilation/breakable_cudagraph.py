is_forward_context_available = get_forward_context = print


class BreakableCUDAGraphCapture:
    _tls = None


class _BreakableEntry:
    capture = input_addresses = None


class BreakableCUDAGraphWrapper:
    entries = graph_pool = runnable = runtime_mode = None

    def __call__(self, *args):
        return "engine"

    def clear_graphs(self):
        return None
