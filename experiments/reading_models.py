"""Regressions of reading times beyond the linear one: smooth effects of surprisal, and random intercepts.

    smooth   an additive model (GAM): natural cubic regression splines of the surprisal of a word and of those before
             it, KNOTS knots at quantiles, with one penalty on the integral of the squared second derivative. The
             penalty is chosen by cross-validation inside the fit; an infinite one is the linear model (Wood 2017)
    mixed    linear with random intercepts of sentences and of word forms, which is ridge regression whose penalties are
             ratios of variances. These maximise the likelihood of the baseline inside the fit

Both are compared with the linear baseline on the same held-out words. The data are means over readers, so there are no
intercepts or slopes of readers. A held-out sentence is new, so its intercept is 0 with the variance of sentences; a
word form that occurs in the fit has its predicted intercept. Densities are of single words, as in the linear model.
"""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix, hstack

KNOTS = 6
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 1e2, 1e6)  # the last one is the linear model
FORM_VARIANCES = (0.01, 0.05, 0.15, 0.4)  # of the intercepts, relative to that of the residuals
SENTENCE_VARIANCES = (0.005, 0.02, 0.06, 0.2)


class NaturalSpline:
    """Natural cubic spline of one predictor: linear beyond its outer knots (Hastie et al. 2009, eq. 5.4)."""

    def __init__(self, values: np.ndarray):
        """Place the knots at quantiles of the values of the fit; equal quantiles are one knot."""
        self.mean, self.scale = float(values.mean()), float(values.std()) or 1.0
        self.knots = np.unique(np.quantile((values - self.mean) / self.scale, np.linspace(0.03, 0.97, KNOTS)))

    def curves(self, values: np.ndarray) -> np.ndarray:
        """Return the columns (N, K - 2) that are not linear; none with fewer than three knots."""
        x, last = (values - self.mean) / self.scale, self.knots[-1]

        def d(knot: float) -> np.ndarray:
            return (np.maximum(x - knot, 0) ** 3 - np.maximum(x - last, 0) ** 3) / (last - knot)

        columns = [d(knot) - d(self.knots[-2]) for knot in self.knots[:-2]]
        return np.column_stack(columns) if columns else np.zeros((len(x), 0))

    def penalty(self) -> np.ndarray:
        """Return the integrals (K - 2, K - 2) of the products of second derivatives, which are linear between knots."""
        last = self.knots[-1]

        def d(knot: float) -> np.ndarray:
            return 6 * (np.maximum(self.knots - knot, 0) - np.maximum(self.knots - last, 0)) / (last - knot)

        second = np.array([d(knot) - d(self.knots[-2]) for knot in self.knots[:-2]]).reshape(-1, len(self.knots)).T
        widths = np.diff(self.knots)
        mass = np.diag(np.append(widths, 0.0) + np.append(0.0, widths)) / 3
        mass += (np.diag(widths, 1) + np.diag(widths, -1)) / 6
        return second.T @ mass @ second


def smooth_log_likelihood(
    controls: np.ndarray, surprisal: np.ndarray, times: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """Return the log-likelihood of each held-out word (N,) with smooth effects of the columns of `surprisal`."""
    log_likelihood = np.empty(len(times))
    for fold in np.unique(folds):
        fit = folds != fold
        splines = [NaturalSpline(column[fit]) for column in surprisal.T]
        curves = [spline.curves(column) for spline, column in zip(splines, surprisal.T, strict=True)]
        x = np.column_stack([controls, surprisal, *curves])
        scale = np.sqrt((x[fit] ** 2).mean(axis=0))
        x /= np.where(scale > 0, scale, 1.0)
        penalty = np.zeros((x.shape[1], x.shape[1]))
        start = controls.shape[1] + surprisal.shape[1]
        for spline, columns in zip(splines, curves, strict=True):
            block = slice(start, start + columns.shape[1])
            roughness = spline.penalty() / np.outer(scale[block], scale[block])
            penalty[block, block] = len(times) * roughness / max(np.trace(roughness), 1e-300)
            start = block.stop
        strength = _choose_penalty(x[fit], times[fit], folds[fit], penalty)
        gram = x[fit].T @ x[fit]
        inverse = np.linalg.pinv(gram + strength * penalty, hermitian=True)
        coefficients = inverse @ (x[fit].T @ times[fit])
        freedom = np.trace(inverse @ gram)
        variance = ((times[fit] - x[fit] @ coefficients) ** 2).sum() / (fit.sum() - freedom)
        log_likelihood[~fit] = log_density(times[~fit] - x[~fit] @ coefficients, variance)
    return log_likelihood


def _choose_penalty(x: np.ndarray, times: np.ndarray, folds: np.ndarray, penalty: np.ndarray) -> float:
    """Return the strength of the penalty with the least squared error in cross-validation over the folds."""
    parts = [(x[folds == fold], times[folds == fold]) for fold in np.unique(folds)]
    grams = [a.T @ a for a, _ in parts]
    moments = [a.T @ b for a, b in parts]
    errors = np.zeros(len(PENALTIES))
    for (a, b), gram, moment in zip(parts, grams, moments, strict=True):
        for i, strength in enumerate(PENALTIES):
            coefficients = np.linalg.lstsq(sum(grams) - gram + strength * penalty, sum(moments) - moment, rcond=None)[0]
            errors[i] += ((b - a @ coefficients) ** 2).sum()
    return PENALTIES[int(errors.argmin())]


def word_form(word: str) -> str:
    """Return a word in lower case without punctuation."""
    return re.sub(r"\W", "", word).lower() or word


class Intercepts(NamedTuple):
    """Random intercepts: levels (N,) of the sentence and of the word form of each word."""

    sentence: np.ndarray
    form: np.ndarray


def mixed_log_likelihoods(
    designs: Sequence[np.ndarray], times: np.ndarray, folds: np.ndarray, intercepts: Intercepts
) -> list[np.ndarray]:
    """Return for each design (N, D) the log-likelihood of each held-out word (N,) with random intercepts; the first
    design is the baseline."""
    results = [np.empty(len(times)) for _ in designs]
    one_hot = [_one_hot(levels) for levels in intercepts]
    num_sentences = one_hot[0].shape[1]
    z = hstack(one_hot, format="csr")
    for fold in np.unique(folds):
        fit = np.flatnonzero(folds != fold)
        test = np.flatnonzero(folds == fold)
        best: _MixedFit | None = None
        for ratios in product(SENTENCE_VARIANCES, FORM_VARIANCES):
            variances = np.repeat(ratios, [num_sentences, z.shape[1] - num_sentences])
            candidate = _MixedFit(z[fit], variances)
            candidate.solve(designs[0][fit], times[fit])
            if best is None or candidate.log_likelihood > best.log_likelihood:
                best = candidate
        assert best is not None
        # Variance of a predicted intercept: its posterior variance, which for a new level is the prior variance.
        intercept_variance = z[test] @ best.posterior_variances()
        for design, result in zip(designs, results, strict=True):
            coefficients, effects, variance = best.solve(design[fit], times[fit])
            residuals = times[test] - design[test] @ coefficients - z[test] @ effects
            result[test] = log_density(residuals, variance * (1 + intercept_variance))
    return results


class _MixedFit:
    """Fit with variance matrix I + Z G Z', relative to the residual variance; G is diagonal."""

    def __init__(self, z: csr_matrix, variances: np.ndarray):
        self.z, self.variances = z, variances
        self.factor = cho_factor((z.T @ z).toarray() + np.diag(1 / variances), lower=True)
        self.log_likelihood = -np.inf

    def _weigh(self, columns: np.ndarray) -> np.ndarray:
        """Multiply by the inverse of the variance matrix (Woodbury)."""
        return columns - self.z @ cho_solve(self.factor, self.z.T @ columns)

    def solve(self, x: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the coefficients, the predicted intercepts and the residual variance; set the log-likelihood."""
        weighted = self._weigh(x)
        coefficients = np.linalg.lstsq(x.T @ weighted, weighted.T @ times, rcond=None)[0]
        residuals = times - x @ coefficients
        weighted_residuals = self._weigh(residuals)
        squares = float(residuals @ weighted_residuals)
        log_det = 2 * np.log(np.diag(self.factor[0])).sum() + np.log(self.variances).sum()
        self.log_likelihood = -0.5 * (len(times) * np.log(squares / len(times)) + log_det)
        effects = self.variances * (self.z.T @ weighted_residuals)
        return coefficients, effects, squares / (len(times) - x.shape[1])

    def posterior_variances(self) -> np.ndarray:
        """Return the variance of each intercept given the data, relative to the residual variance."""
        return np.diag(cho_solve(self.factor, np.eye(len(self.variances))))


def _one_hot(levels: np.ndarray) -> csr_matrix:
    _, index = np.unique(levels, return_inverse=True)
    return csr_matrix((np.ones(len(index)), (np.arange(len(index)), index)))


def log_density(residuals: np.ndarray, variance: float | np.ndarray) -> np.ndarray:
    """Return the log-density (N,) of a normal distribution around 0."""
    return -0.5 * (np.log(2 * np.pi * variance) + residuals**2 / variance)
