"""Privacy accounting: events, budgets, the ledger, accounting methods and noise calibration."""

from fedpriv.accounting.accountant import Accountant, Budget, BudgetExceeded
from fedpriv.accounting.calibration import calibrate
from fedpriv.accounting.events import Event, scaled, tally
from fedpriv.accounting.filters import Filter
from fedpriv.accounting.ledger import Ledger, LedgerError
from fedpriv.accounting.methods.advanced_composition import theorem_scale
from fedpriv.accounting.methods.base import METHODS, PrivacyGuarantee, UnsupportedEvent
from fedpriv.accounting.methods.registry import advantage, epsilon
from fedpriv.accounting.solving import rounds, sampling_rate

__all__ = [
    "METHODS",
    "Accountant",
    "Budget",
    "BudgetExceeded",
    "Event",
    "Filter",
    "Ledger",
    "LedgerError",
    "PrivacyGuarantee",
    "UnsupportedEvent",
    "advantage",
    "calibrate",
    "epsilon",
    "rounds",
    "sampling_rate",
    "scaled",
    "tally",
    "theorem_scale",
]
