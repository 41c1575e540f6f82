is_in_torch_compile_warmup = get_pcg_capture_stream = print


class ConcreteSizeEntry:
    cudagraph = num_finished_warmup = output = runnable = None


class CUDAPiecewiseBackend:
    concrete_size_entries = sym_shape_indices = first_run_finished = graph_pool = piecewise_compile_index = None

    def __call__(self, *args):
        return "engine"
