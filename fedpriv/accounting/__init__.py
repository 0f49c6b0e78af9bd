"""Events, budget, ledger, accounting methods and calibration: what privacy costs, and who pays."""

from fedpriv.accounting.accountant import Accountant, Budget, BudgetExceeded
from fedpriv.accounting.advanced import theorem_scale
from fedpriv.accounting.base import Answer, UnsupportedEvent
from fedpriv.accounting.calibration import calibrate
from fedpriv.accounting.events import Event, scaled, tally
from fedpriv.accounting.ledger import Ledger, LedgerError
from fedpriv.accounting.methods import METHODS, epsilon

__all__ = [
    "METHODS",
    "Accountant",
    "Answer",
    "Budget",
    "BudgetExceeded",
    "Event",
    "Ledger",
    "LedgerError",
    "UnsupportedEvent",
    "calibrate",
    "epsilon",
    "scaled",
    "tally",
    "theorem_scale",
]
