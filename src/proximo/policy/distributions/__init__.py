"""Action distributions: what a network's numbers mean as actions.

Each distribution reads the actor's output [..., P] and works on actions in coordinates of its own: for
discrete spaces the indices, for continuous ones the Gaussian sample before clipping or squashing, so that
its log-probability never has to be inverted. `to_env` turns them into members of the action space.

Sampling takes noise that was drawn beforehand (`noise`), so a whole rollout's noise is one call. Masks are
true for allowed actions; every discrete distribution takes one, and the value None for no mask.
"""

from proximo.policy.distributions.api import Distribution as Distribution
from proximo.policy.distributions.beta import Beta as Beta
from proximo.policy.distributions.composite import Composite as Composite
from proximo.policy.distributions.composite import build_distribution as build_distribution
from proximo.policy.distributions.discrete import Bernoulli as Bernoulli
from proximo.policy.distributions.discrete import Categorical as Categorical
from proximo.policy.distributions.discrete import MultiCategorical as MultiCategorical
from proximo.policy.distributions.gaussian import Gaussian as Gaussian
from proximo.policy.distributions.gaussian import TanhGaussian as TanhGaussian
