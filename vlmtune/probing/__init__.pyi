# The public names of this room: type checkers and `__init__.py` read them here.

from .categories import categories as categories
from .embeddings import LayerEmbedder as LayerEmbedder
from .embeddings import TaskEmbeddings as TaskEmbeddings
from .embeddings import embed_tasks as embed_tasks
from .experiment import Measured as Measured
from .experiment import measure as measure
from .fine import fine as fine
from .parameters import Transformation as Transformation
from .parameters import transformation as transformation
from .probe import Probe as Probe
from .probe import ProbeSpec as ProbeSpec
from .probe import Training as Training
from .probe import predict as predict
from .probe import run_probes as run_probes
from .probe import train_probe as train_probe
from .sources import LabelledImage as LabelledImage
from .sources import labelled_images as labelled_images
from .tasks import Task as Task
from .tasks import Version as Version
