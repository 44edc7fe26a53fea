"""The code that everybody runs, and what everybody has to answer."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cell:
    code: str
    shows: str = ""  # every answer to it must contain this
    is_value: bool = False  # as the value of the cell, and nothing more

    def expected(self, value):
        """What to look for in an answer of somebody who writes a value like that."""
        return value.format(self.shows) if self.is_value else self.shows


ONE = Cell("1+1", "2", is_value=True)
LIBRARIES = Cell("import numpy, pandas, matplotlib.pyplot\n1+1", "2", is_value=True)
PREPARE = Cell("import numpy, pandas\ndf = pandas.DataFrame({'k': numpy.arange(10_000) % 10, 'v': numpy.arange(10_000.0)})\nlen(df)", "10000", is_value=True)
CELLS = {
    "run 1+1": ONE,
    "run a groupby": Cell("df.groupby('k').v.agg(['sum', 'mean'])", "4995000.0"),
    "run a cell that fails": Cell("1/0", "ZeroDivisionError"),
}
FIGURE = Cell("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('squares')\nplt.show()", "image/png")
PRINTED = Cell("import sys\nfor _ in range(100): sys.stdout.write(('x' * 99 + '\\n') * 1000);", "x" * 99)
# What a context has done before its memory is looked at, each on top of the one before.
STAGES = {
    "after 1+1": ONE,
    "libraries imported": LIBRARIES,
    "after work with numpy and pandas": Cell("pandas.DataFrame({'a': numpy.arange(1000) % 7, 'b': 1.0}).groupby('a').b.sum()[0]", "143.0"),
    "after gc.collect()": Cell("import gc; gc.collect() >= 0", "True", is_value=True),
}
# The number of the call is in the cell, so that its answer is known from those to others.
NUMBERED = Cell("$ID", "$ID", is_value=True)
WORK = Cell("n = 0\nfor i in range(60_000): n += i\nn == 1799970000 and $ID", "$ID", is_value=True)
