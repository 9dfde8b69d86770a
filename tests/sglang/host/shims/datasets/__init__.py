"""Stands in for a package that SGLang's benchmark imports for data sets that are not used here."""


def load_dataset(*args, **kwargs):
    raise RuntimeError("this data set is not available on the test host")
