class EagerRunner:
    def execute(self, forward_batch, pp_proxy_tensors=None):
        return None
