# The public names of this room: type checkers and `__init__.py` read them here.

from .caveats import Caveat as Caveat
from .caveats import caveats as caveats
from .differences import Comparison as Comparison
from .differences import compare_with_first as compare_with_first
from .formats import to_csv as to_csv
from .formats import to_latex as to_latex
from .heat import heat as heat
from .html import to_html as to_html
from .html import write_report as write_report
from .items_file import read_items as read_items
from .items_file import write_items as write_items
from .markdown import to_markdown as to_markdown
from .run_report import Provenance as Provenance
from .run_report import RunReport as RunReport
from .screen import show as show
from .seeds import SeededRun as SeededRun
from .seeds import over_seeds as over_seeds
