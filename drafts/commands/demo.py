"""`circuit demo`: a trained checkpoint decodes plainly, with its eager drafter and with the circuit: one text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from drafts.commands.artifacts import BackendChoice, cached_artifact, device_of
from drafts.commands.metrics import draft_ms, target_ms
from drafts.commands.prompts import Prompt, demo_checkpoint, demo_prompts
from drafts.commands.screen import Screen, plural
from drafts.commands.session import Form, Session, load_session
from drafts.commands.stream import DRAFTED, OWN, PROMPT, TokenStream
from drafts.generation import Comparison, Generation, SpeculationMetrics, combine_metrics, compare_to_plain
from drafts.load_compiled import Artifact
from drafts.proposer import DraftProposer

WARM_UP_TOKENS = 8
FORMS: tuple[Form, ...] = ("eager", "circuit")


@dataclass(frozen=True, slots=True)
class Decoded:
    """One prompt, decoded three ways."""

    prompt: str
    plain: Generation
    eager: Generation
    circuit: Generation

    def comparisons(self) -> dict[str, Comparison]:
        """Return how the drafted texts compare with the plain one."""
        return {
            "eager": compare_to_plain(self.eager, self.plain),
            "circuit": compare_to_plain(self.circuit, self.plain),
        }

    @property
    def is_identical(self) -> bool:
        """Whether both drafted texts are the plain one, token for token."""
        return all(comparison.is_identical for comparison in self.comparisons().values())


def demo(
    model: Path | None,
    screen: Screen,
    *,
    prompt: str | None,
    num_prompts: int,
    num_drafts: int,
    max_tokens: int,
    backend: BackendChoice,
) -> bool:
    """Decode each prompt three ways, show the circuit's text as it comes, and compare; True when all texts are one.

    A backend left open takes programs that are compiled already, and compiles none: the demo is short.
    """
    if prompt == "":
        raise ValueError("--prompt: expected some text, got none; give the text to continue")
    session = load_session(model or demo_checkpoint(), screen, device=device_of(backend.backend))
    prompts = demo_prompts(num_prompts) if prompt is None else [Prompt("", prompt)]
    encoded = [session.encode(one.text, max_new_tokens=max_tokens) for one in prompts]
    num_tokens = max(map(len, encoded)) + max_tokens
    artifact = cached_artifact(session, screen, backend, num_tokens=num_tokens, num_drafts=num_drafts, compiles=False)
    _print_title(screen, session, num_drafts=num_drafts, max_tokens=max_tokens)
    show = _Show(
        session,
        screen,
        num_tokens=num_tokens,
        num_drafts=num_drafts,
        max_tokens=max_tokens,
        artifact=artifact,
        backend=backend.backend,
    )
    show.warm_up(encoded[0])
    decoded = []
    for index, (one, tokens) in enumerate(zip(prompts, encoded, strict=True), start=1):
        place = " · ".join(part for part in (f"{index} of {len(prompts)}", one.source) if part)
        screen.out.print(Text(f"\n── {place} ──", style=PROMPT))
        decoded.append(show.decode(one.text, tokens))
    metrics = {
        form: combine_metrics([getattr(one, form).metrics for one in decoded]) for form in ("plain", "eager", "circuit")
    }
    _print_summary(screen, metrics, decoded)
    screen.emit(_record(session, decoded, metrics, counters=show.counters(), num_drafts=num_drafts))
    return all(one.is_identical for one in decoded)


class _Show:
    """The two drafters over one session; each prompt goes plain, eager and circuit in turn, so that times compare."""

    def __init__(
        self,
        session: Session,
        screen: Screen,
        *,
        num_tokens: int,
        num_drafts: int,
        max_tokens: int,
        artifact: Artifact | None,
        backend: str | None,
    ) -> None:
        self._session, self._screen = session, screen
        self._num_drafts, self._max_tokens = num_drafts, max_tokens
        self._eager, _ = session.drafter("eager", num_tokens=num_tokens, num_drafts=num_drafts)
        self._circuit, self._watch = session.drafter(
            "circuit", num_tokens=num_tokens, num_drafts=num_drafts, artifact=artifact, backend=backend
        )

    def warm_up(self, tokens: list[int]) -> None:
        """Decode a few tokens each way: first calls are slow and say nothing."""
        with self._screen.step("warming up"):
            for proposer in (None, self._eager, self._circuit):
                self._session.generate(proposer, tokens, max_new_tokens=WARM_UP_TOKENS, num_drafts=self._num_drafts)

    def decode(self, prompt: str, tokens: list[int]) -> Decoded:
        """Decode one prompt three ways; the circuit's text is shown as it comes."""
        plain = self._behind_a_bar("decoding plainly", None, tokens)
        eager = self._behind_a_bar("decoding with the eager drafter", self._eager, tokens)
        if self._screen.as_json:
            circuit = self._behind_a_bar("decoding with the circuit", self._circuit, tokens)
        else:
            stream = TokenStream(self._session.tokenizer, self._screen, watch=self._watch)
            stream.start(prompt, tokens)
            circuit = self._generate(self._circuit, tokens, on_token=stream.take)
            stream.finish()
        return Decoded(prompt, plain, eager, circuit)

    def counters(self) -> dict[str, int]:
        """Return how often each path of the circuit's drafter ran; proof that the circuit did."""
        return self._circuit.path_counters

    def _behind_a_bar(self, what: str, proposer: DraftProposer | None, tokens: list[int]) -> Generation:
        with self._screen.bar(what, self._max_tokens) as advance:
            return self._generate(proposer, tokens, on_token=lambda _: advance(1))

    def _generate(
        self, proposer: DraftProposer | None, tokens: list[int], *, on_token: Callable[[int], None]
    ) -> Generation:
        return self._session.generate(
            proposer,
            tokens,
            max_new_tokens=self._max_tokens,
            num_drafts=self._num_drafts,
            on_token=on_token,
        )


def _print_title(screen: Screen, session: Session, *, num_drafts: int, max_tokens: int) -> None:
    config = session.config
    screen.out.print(Text.assemble((str(session.folder), "bold")), soft_wrap=True)
    screen.out.print(
        f"{config.num_hidden_layers} layers of width {config.hidden_size} and their MTP layer, float32, greedy\n"
        f"{plural(num_drafts, 'draft')} a round, {plural(max_tokens, 'token')} after each prompt\n"
    )
    screen.out.print(
        Text.assemble(("prompt", PROMPT), "  ", ("drafted and accepted", DRAFTED), "  ", ("the target's own", OWN))
    )


def _print_summary(screen: Screen, metrics: dict[str, SpeculationMetrics], decoded: list[Decoded]) -> None:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("", no_wrap=True)
    for form in metrics:
        table.add_column(form, justify="right")
    drafted = [metrics[form] for form in FORMS]
    table.add_row("mean accepted length", "", *(f"{one.mean_accepted_length:.2f}" for one in drafted))
    for position in range(len(drafted[0].accepted)):
        shares = (f"{100 * one.cumulative_acceptance[position]:.0f} %" for one in drafted)
        table.add_row(f"draft {position + 1} accepted", "", *shares)
    table.add_row("drafter, ms a round", "", *(f"{draft_ms(one):.1f}" for one in drafted))
    table.add_row("target, ms a round", *(f"{target_ms(one):.1f}" for one in metrics.values()))
    table.add_row("tokens a second", *(f"{one.tokens_per_second:.1f}" for one in metrics.values()))
    screen.out.print()
    screen.out.print(table)
    screen.out.print()
    for index, one in enumerate(decoded, start=1):
        for form, comparison in one.comparisons().items():
            if not comparison.is_identical:
                margin = "none" if comparison.margin is None else f"{comparison.margin:.2g}"
                screen.out.print(f"prompt {index}, {form}: differs at token {comparison.position}, margin {margin}")
    is_identical = all(one.is_identical for one in decoded)
    answer = ("yes", "bold green") if is_identical else ("no", "bold red")
    screen.out.print(Text.assemble("identical to plain decoding: ", answer))


def _record(
    session: Session,
    decoded: list[Decoded],
    metrics: dict[str, SpeculationMetrics],
    *,
    counters: dict[str, int],
    num_drafts: int,
) -> dict[str, Any]:
    drafted = {form: metrics[form] for form in FORMS}
    return {
        "ok": all(one.is_identical for one in decoded),
        "identical_to_plain": all(one.is_identical for one in decoded),
        "mean_accepted_length": {form: one.mean_accepted_length for form, one in drafted.items()},
        "accepted_per_position": metrics["circuit"].cumulative_acceptance,
        "accepted_given_previous": metrics["circuit"].conditional_acceptance,
        "draft_ms": {form: draft_ms(one) for form, one in drafted.items()},
        "target_ms": {form: target_ms(one) for form, one in metrics.items()},
        "tokens_per_s": {form: one.tokens_per_second for form, one in metrics.items()},
        "num_drafts": num_drafts,
        "num_tokens": metrics["plain"].num_tokens,
        "path_counters": counters,
        "model": str(session.folder),
        "prompts": [
            {
                "prompt": one.prompt,
                "text": session.tokenizer.decode(one.circuit.tokens),
                "identical_to_plain": one.is_identical,
                "mean_accepted_length": one.circuit.metrics.mean_accepted_length,
            }
            for one in decoded
        ],
    }
