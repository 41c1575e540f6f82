class MetadataGlueGraph:
    def run(self, attn_backend, fb_view, key):
        return None
