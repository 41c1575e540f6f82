class BreakableCUDAGraphCapture:
    pass


class BreakableCUDAGraphWrapper:
    def __call__(self, *args):
        return "engine"

    def clear_graphs(self):
        return None
