"""The model: scikit-learn's logistic regression, as two arrays."""

import numpy as np
from flwr.app import Array, ArrayRecord
from sklearn.linear_model import SGDClassifier


def start() -> ArrayRecord:
    """The arrays before round 1."""
    return ArrayRecord({"coef": Array(np.zeros((10, 64))), "intercept": Array(np.zeros(10))})


def build(arrays: ArrayRecord) -> SGDClassifier:
    """The classifier with these arrays."""
    classifier = SGDClassifier(
        loss="log_loss", alpha=0.0, learning_rate="constant", eta0=0.05, random_state=0
    )
    labels = np.arange(10)
    classifier.partial_fit(np.zeros((10, 64)), labels, classes=labels)  # makes its arrays, to be replaced
    classifier.coef_ = np.array(arrays["coef"].numpy())
    classifier.intercept_ = np.array(arrays["intercept"].numpy())
    return classifier


def arrays_of(classifier: SGDClassifier) -> ArrayRecord:
    """The classifier's arrays."""
    return ArrayRecord({"coef": Array(classifier.coef_), "intercept": Array(classifier.intercept_)})
