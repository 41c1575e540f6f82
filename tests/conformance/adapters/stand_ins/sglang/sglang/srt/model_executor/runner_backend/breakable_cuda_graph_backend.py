class BreakableCudaGraphBackend:
    def capture_one(self, shape_key, forward_fn):
        return None
