class CUDAPiecewiseBackend:
    def __call__(self, *args):
        return "engine"
