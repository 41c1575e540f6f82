is_forward_context_available = get_forward_context = print


class CUDAGraphEntry:
    cudagraph = input_addresses = None


class CUDAGraphWrapper:
    concrete_cudagraph_entries = graph_pool = runnable = runtime_mode = None

    def __call__(self, *args):
        return "engine"

    def clear_graphs(self):
        return None
