"""Checks of what a backend says of each token beside its text: log-probabilities, and its own text."""

from __future__ import annotations

from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.stage.alphabet import TURN, bytes_of, ids
from enginewire.conformance.client_side.stage.script import LENGTH, Say, say, value_of_alternative
from enginewire.conformance.wire.violation import expect, expect_equal


@client_check("CLI-15")
async def log_probabilities_stay_aligned(ctx: ClientContext) -> None:
    """While text waits for its stop string, and up to the token that stops."""
    pieces = [*"ab ST", "OPxy"]
    value_of = {token: -0.125 * (place + 1) for place, token in enumerate(dict.fromkeys(ids(*"ab STOPxy")))}
    script = [Say([piece], row=[value_of[token] for token in ids(piece)]) for piece in pieces]
    scene = ctx.play(*script, Say(finish=LENGTH))
    answer = await ctx.start(scene, stop=["STOP"], logprobs=0).ok()
    for output in answer.choice.counted:
        rows = list(output.logprobs.token_logprobs)
        expected = [value_of[token] for token in output.token_ids]
        expect_equal(rows, expected, "the rows are not those of the token ids beside them")


@client_check("CLI-15", "alternatives", needs=("CLI-15", "CLI-15/selected"))
async def alternatives_stay_aligned(ctx: ClientContext) -> None:
    """Two for each token, and a stop string ends inside of an output."""
    script, place = [], 0
    for piece in ("ab ", "STOPxy"):
        rows = range(place, place + len(ids(piece)))
        place = rows.stop
        script.append(Say([piece], row=[-row for row in rows], top=_alternatives(rows)))
    answer = await ctx.start(ctx.play(*script, Say(finish=LENGTH)), stop=["STOP"], logprobs=2).ok()
    place = 0
    for output in answer.choice.counted:
        rows, place = range(place, place + len(output.token_ids)), place + len(output.token_ids)
        table, expected = output.logprobs, _alternatives(rows)
        message = "the alternatives are not those of the token ids beside them"
        expect_equal(list(table.top_token_ids), expected, message)
        expect_equal(list(table.top_logprobs), list(map(value_of_alternative, expected)), message)
        expect(table.top_n == 2 or not rows, "top_n is another one", expected=2, seen=table.top_n)


def _alternatives(rows: range) -> list[int]:
    return [token for row in rows for token in (2 * row, 2 * row + 1)]


@client_check("CLI-15", "selected")
async def selected_values_stay_aligned(ctx: ClientContext) -> None:
    """Two ids are asked for, and a stop string ends inside of an output."""
    asked, script, place = ids(*"xy"), [], 0
    for piece in ("ab ", "STOPxy"):
        rows = range(place, place + len(ids(piece)))
        script.append(Say([piece], row=[-row for row in rows], selected=_selected(rows)))
        place = rows.stop
    scene = ctx.play(*script, Say(finish=LENGTH))
    answer = await ctx.start(scene, stop=["STOP"], logprobs=0, logprob_token_ids=asked).ok()
    place = 0
    for output in answer.choice.counted:
        rows = range(place, place + len(output.token_ids))
        seen = list(output.logprobs.selected_logprobs)
        expect_equal(seen, _selected(rows), "selected_logprobs are not those of the token ids beside them")
        place = rows.stop


def _selected(rows: range) -> list[float]:
    """Two values for each row."""
    return [-row - part for row in rows for part in (0.25, 0.5)]


@client_check("CLI-43")
async def each_token_has_its_own_text(ctx: ClientContext) -> None:
    """A character in two parts, a special token, a token that a stop cuts; then without being asked."""
    script = [say(piece) for piece in ("a", b"\xc3", b"\xa9", TURN, " STOP more")]
    for asked in (0, None):
        scene = ctx.play(*script, Say(finish=LENGTH))
        answer = await ctx.start(scene, stop=["STOP"], logprobs=asked).ok()
        for output in answer.choice.counted:
            due = [bytes_of(token).decode(errors="replace") for token in output.token_ids]
            expected = due if asked is not None else []
            expect_equal(list(output.tokens), expected, "tokens are not the texts of the ids beside them")


@client_check("CLI-15", "sum", needs=("CLI-15",))
async def the_sum_is_that_of_the_rows_so_far(ctx: ClientContext) -> None:
    """Also of an output of which a stop string cuts a part, and without the tokens that are cut."""
    script = [Say(["ab ST"], row=[-0.5] * 5), Say(["OPxy"], row=[-0.25] * 4)]
    scene = ctx.play(*script, Say(finish=LENGTH))
    answer = await ctx.start(scene, stop=["STOP"], logprobs=0).ok()
    total = 0.0
    for output in answer.choice.counted:
        total += sum(output.logprobs.token_logprobs)
        if output.HasField("cum_log_probs"):
            expect_equal(output.cum_log_probs, total, "cum_log_probs is not the sum of the rows so far")
