# The public names of this room: type checkers and `__init__.py` read them here.

from .auroc import auroc as auroc
from .average_precision import average_precision as average_precision
from .average_precision import class_average_precision as class_average_precision
from .cluster_robust import cluster_robust_mean as cluster_robust_mean
from .intervals import bootstrap_interval as bootstrap_interval
from .intervals import bootstrap_mean as bootstrap_mean
from .intervals import wilson_interval as wilson_interval
from .multiple_choice import choice_credit as choice_credit
from .multiple_choice import choice_ranks as choice_ranks
from .paired_accuracy import image_correct as image_correct
from .paired_accuracy import matching_chance as matching_chance
from .paired_accuracy import matching_correct as matching_correct
from .paired_accuracy import text_correct as text_correct
from .ranking import recall_at as recall_at
from .ranking import true_ranks as true_ranks
from .retrieval import bank_ranks as bank_ranks
from .significance import PairedDifference as PairedDifference
from .significance import mcnemar as mcnemar
from .significance import paired_difference as paired_difference
from .significance import seeded_difference as seeded_difference
from .torchmetrics import ColaMeanAveragePrecision as ColaMeanAveragePrecision
from .torchmetrics import MultipleChoiceAccuracy as MultipleChoiceAccuracy
from .torchmetrics import PairedAccuracy as PairedAccuracy
from .torchmetrics import RetrievalRecallAtK as RetrievalRecallAtK
