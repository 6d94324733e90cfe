"""Functions that only note what they are called with."""


def recorded(monkeypatch, module, name, result):
    """The arguments of each call of a function that now only returns `result`."""
    calls = []

    def stand_in(*arguments, **options):
        calls.append((arguments, options))
        return result

    monkeypatch.setattr(module, name, stand_in)
    return calls
