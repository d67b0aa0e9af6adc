"""All sets of held-out data that a run evaluates: the main one, and those with a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ranks.group import Ranks
from rundir.config import RunConfig
from rundir.paths import RunDir
from rundir.prepared import PreparedData, read_prepared
from train.evaluation.answer_tracker import AnswerTracker
from train.evaluation.answering import Answerer
from train.evaluation.evaluator import Evaluator
from train.files.served import tokenizer_of
from train.model.head import Head
from train.model.loss import SummedLoss


class EvaluationSets:
    """The evaluators of a run. The main one alone decides which checkpoint is the best."""

    def __init__(
        self,
        main: Evaluator | None,
        named: Sequence[Evaluator],
        tracker: AnswerTracker | None = None,
    ) -> None:
        self._main, self.named, self.tracker = main, named, tracker

    @property
    def num_samples(self) -> int:
        """The number of samples in the main set."""
        return 0 if self._main is None else self._main.num_samples

    def evaluate(self, step: int) -> float | None:
        """Evaluate all sets; return the loss on the main one, None without one."""
        loss = None if self._main is None else self._main.evaluate(step)
        for named in self.named:
            named.evaluate(step)
        return loss


def evaluation_sets(
    config: RunConfig,
    run: RunDir,
    ranks: Ranks,
    model: Any,
    *,
    head: Head,
) -> EvaluationSets | None:
    """Return the evaluators of a run's sets; None if there are none, or train.evaluate is false."""
    prepared = read_prepared(run)
    if not config.train.evaluate or (prepared.evaluation is None and not prepared.evaluations):
        return None
    loss = SummedLoss(model, head=head)
    tokenizer = tokenizer_of(Path(prepared.model_path))

    def answerer(data: PreparedData) -> Answerer:
        return Answerer(data, loss, tokenizer, ranks)

    named = [
        Evaluator(answerer(data), run, config, most=config.evaluation[name].max_samples, name=name)
        for name, data in prepared.evaluations.items()
    ]
    if prepared.evaluation is None:
        return EvaluationSets(None, named)
    of_main, tracker = answerer(prepared.evaluation), None
    if config.train.evolution_prompts and config.scoring is None:
        tracker = AnswerTracker(of_main, run, config)
    main = Evaluator(of_main, run, config, most=config.data.max_eval_samples)
    return EvaluationSets(main, named, tracker)
