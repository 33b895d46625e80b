"""Checks of a backend's text: characters, stop strings, stop tokens, choices."""

from __future__ import annotations

from enginewire.conformance.client_side.answer import Answer
from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.stage.alphabet import EOS as EOS_ID, TURN, TURN_TEXT, ids
from enginewire.conformance.client_side.stage.facts import Facts
from enginewire.conformance.client_side.stage.script import EOS, ERROR, LENGTH, STOP, Hold, Say, say, spoken
from enginewire.conformance.wire.stream import reason_name
from enginewire.conformance.wire.violation import expect, expect_equal

REPLACEMENT = "\ufffd"


def expect_stop(answer: Answer, stop: str, num_tokens: int) -> None:
    """The stop string ended the choice with that token."""
    choice = answer.choice
    expect_equal(choice.reason, "STOP", "a stop string did not end its choice")
    expect_equal(choice.end.stop_reason.text, stop, "stop_reason names another string")
    expect_equal(choice.num_tokens, num_tokens, "the stop string ended its choice at another token")


@client_check("CLI-02")
async def a_stop_string_is_not_shown(ctx: ClientContext) -> None:
    """The string is one token, so nothing else can go wrong."""
    scene = ctx.play(say("one "), say("STOP"), say("more", finish=LENGTH))
    answer = await ctx.start(scene, stop=["STOP"]).ok()
    expect_stop(answer, "STOP", 5)
    expect_equal(answer.choice.text, "one ", "the stop string is shown")


@client_check("CLI-02", "inside-a-token")
async def a_stop_string_is_cut_out_of_a_token(ctx: ClientContext) -> None:
    """Text before it in the same token is shown, text behind it is not."""
    scene = ctx.play(say("xyEND"), say("more", finish=LENGTH))
    answer = await ctx.start(scene, stop=["EN"]).ok()
    expect_stop(answer, "EN", 1)
    expect_equal(answer.choice.text, "xy", "the text of the token is cut elsewhere")


@client_check("CLI-02", "special-token")
async def a_skipped_token_is_found_as_a_stop_string(ctx: ClientContext) -> None:
    """Its text is the stop string, although it is never shown."""
    scene = ctx.play(say("ab"), say(TURN), say("more", finish=LENGTH))
    answer = await ctx.start(scene, stop=[TURN_TEXT]).ok()
    expect_stop(answer, TURN_TEXT, 3)
    expect_equal(answer.choice.text, "ab", "the stop string is shown")


@client_check("CLI-03")
async def a_split_stop_string_is_found(ctx: ClientContext) -> None:
    """One character per message; text is never taken back, so what leaked is there at the end."""
    scene = ctx.play(*spoken("ab STOP more"), Say(finish=LENGTH))
    answer = await ctx.start(scene, stop=["STOP"]).ok()
    expect_stop(answer, "STOP", 7)
    early = "".join(output.text for output in answer.choice.outputs if not output.finish_reason)
    expect("ab ".startswith(early), "the beginning of a stop string was shown", seen=repr(early))


@client_check("CLI-04")
async def a_visible_stop_string_is_shown_once(ctx: ClientContext) -> None:
    """Split over tokens, and as a part of one."""
    for script in ([say("ab STOP more")], [say("ab"), say(" STOP more")]):
        scene = ctx.play(*script, Say(finish=LENGTH))
        answer = await ctx.start(scene, stop=["STOP"], include_stop_str_in_output=True).ok()
        expect_equal(answer.choice.reason, "STOP", "a stop string did not end its choice")
        expect_equal(answer.choice.text, "ab STOP", "the stop string is not shown exactly once")


@client_check("CLI-04", "special-token")
async def a_visible_stop_string_is_shown_although_its_token_is_skipped(ctx: ClientContext) -> None:
    """Behind text that could have become another stop string."""
    scene = ctx.play(say("ab"), say(TURN), say("more", finish=LENGTH))
    answer = await ctx.start(scene, stop=[TURN_TEXT, "bx"], include_stop_str_in_output=True).ok()
    expect_equal(answer.choice.reason, "STOP", "a stop string did not end its choice")
    expect_equal(answer.choice.text, f"ab{TURN_TEXT}", "the stop string is not shown exactly once")


@client_check("CLI-05")
async def split_characters_are_held_back(ctx: ClientContext) -> None:
    """Two, three and four bytes, each its own message."""
    text = "é€🙂ö"
    messages = [say(bytes([byte])) for byte in text.encode()]
    answer = await ctx.start(ctx.play(*messages, Say(finish=LENGTH))).ok()
    expect_equal(answer.choice.text, text, "characters of several tokens are not shown whole")


@client_check("CLI-05", "never-complete")
async def broken_bytes_become_replacements(ctx: ClientContext) -> None:
    """In the middle, where the next byte shows that none will follow, and at the end."""
    scene = ctx.play(say("a"), say(b"\xc3"), say("b"), say(b"\xc3"), Say(finish=LENGTH))
    answer = await ctx.start(scene).ok()
    expected = f"a{REPLACEMENT}b{REPLACEMENT}"
    expect_equal(answer.choice.text, expected, "bytes that are no character are not one U+FFFD each")


@client_check("CLI-07")
async def no_stop_below_min_tokens(ctx: ClientContext) -> None:
    """The string occurs once below the floor, and never again."""
    scene = ctx.play(*spoken("aENDbcdefgh"), Say(finish=LENGTH))
    answer = await ctx.start(scene, stop=["END"], min_tokens=6).ok()
    expect_equal(answer.choice.reason, "LENGTH", "a stop string below min_tokens ended the choice")
    expect_equal(answer.choice.text, "aENDbcdefgh", "text is missing")


@client_check("CLI-19", "boundary")
async def a_stop_in_token_min_tokens_counts(ctx: ClientContext) -> None:
    """It ends in exactly that token."""
    scene = ctx.play(say("aENDbcd"), Say(finish=LENGTH))
    expect_stop(await ctx.start(scene, stop=["END"], min_tokens=4).ok(), "END", 4)


@client_check("CLI-19", "spanning")
async def a_stop_across_min_tokens_counts(ctx: ClientContext) -> None:
    """It begins below the floor and ends beyond it."""
    scene = ctx.play(say("aENDbcd"), Say(finish=LENGTH))
    expect_stop(await ctx.start(scene, stop=["END"], min_tokens=3).ok(), "END", 4)


@client_check("CLI-17")
async def text_is_shown_once_it_cannot_stop(ctx: ClientContext) -> None:
    """The engine is silent behind the token that decides, so nothing later can bring the text."""
    hold = Hold()
    scene = ctx.play(*spoken("12STx"), hold, Say(finish=LENGTH))
    answer = ctx.start(scene, stop=["STOP"])
    await answer.until_text("12STx", ctx.patience)
    hold.released.set()
    expect_equal((await answer.ok()).choice.text, "12STx", "the text is another one")


@client_check("CLI-18")
async def the_earliest_match_wins(ctx: ClientContext) -> None:
    """Whatever the order of the list: both strings are in one token."""
    for stops in (["am", "tr"], ["tr", "am"]):
        scene = ctx.play(say("stream"), Say(finish=LENGTH))
        answer = await ctx.start(scene, stop=stops).ok()
        expect_equal(answer.choice.end.stop_reason.text, "tr", f"another match won of {stops}")


@client_check("CLI-18", "longest")
async def the_longest_of_the_earliest_wins(ctx: ClientContext) -> None:
    """All of them begin at the same character of one token."""
    for stops in (["ab", "abc"], ["abc", "ab"]):
        scene = ctx.play(say("abcd"), Say(finish=LENGTH))
        answer = await ctx.start(scene, stop=stops).ok()
        expect_equal(answer.choice.end.stop_reason.text, "abc", f"another match won of {stops}")


@client_check("CLI-20", "hidden")
async def a_stop_token_is_kept_and_not_shown(ctx: ClientContext) -> None:
    """The caller's own stop id."""
    scene = ctx.play(say("ab"), Say("Z", finish=STOP, stop_token=ord("Z")))
    choice = (await ctx.start(scene, stop_token_ids=[ord("Z")]).ok()).choice
    expect_equal(choice.tokens, ids(*"abZ"), "the stop token is missing among the token ids")
    expect_equal(choice.text, "ab", "the text of a stop token is shown")


@client_check("CLI-20", "visible")
async def a_visible_stop_token_is_shown(ctx: ClientContext) -> None:
    """The same id in the other list."""
    scene = ctx.play(say("ab"), Say("Z", finish=STOP, stop_token=ord("Z")))
    choice = (await ctx.start(scene, stop_token_ids_visible=[ord("Z")]).ok()).choice
    expect_equal(choice.tokens, ids(*"abZ"), "the stop token is missing among the token ids")
    expect_equal(choice.text, "abZ", "the text of a visible stop token is not shown")


@client_check("CLI-20", "eos")
async def an_end_of_sequence_is_kept_and_not_shown(ctx: ClientContext) -> None:
    """Special tokens are asked for, and still the end of the sequence has no text."""
    scene = ctx.play(say("ab"), say(EOS_ID, finish=EOS))
    choice = (await ctx.start(scene, skip_special_tokens=False).ok()).choice
    expect_equal(choice.tokens, ids("ab", EOS_ID), "the end of sequence is missing among the token ids")
    expect_equal(choice.text, "ab", "the text of an end of sequence is shown")


@client_check("CLI-21")
async def ignore_eos_keeps_stop_strings(ctx: ClientContext) -> None:
    """It is about the model's own end only."""
    scene = ctx.play(say("one "), say("STOP"), say("more", finish=LENGTH))
    expect_stop(await ctx.start(scene, stop=["STOP"], ignore_eos=True).ok(), "STOP", 5)


@client_check("CLI-22")
async def choices_do_not_mix(ctx: ClientContext) -> None:
    """Characters and stop strings of two choices come in turns; one of them stops."""
    scene = ctx.play(
        say(b"\xc3", index=0),
        say("ST", index=1),
        say(b"\xa9S", index=0),
        say("OP", index=1),
        say("TART", index=0),
        Say(finish=LENGTH, index=1),
        Say(finish=EOS, index=0),
    )
    answer = await ctx.start(scene, n=2, stop=["STOP"]).ok()
    expect_equal(sorted(answer.choices), [0, 1], "the choices are others")
    seen = {
        index: (choice.text, reason_name(choice.end.finish_reason))
        for index, choice in answer.choices.items()
    }
    expect_equal(seen, {0: ("éSTART", "EOS"), 1: ("", "STOP")}, "texts and ends of the choices are mixed up")


@client_check("CLI-22", "failed", needs=("CLI-22",))
async def a_choice_that_fails_alone_leaves_its_siblings(ctx: ClientContext) -> None:
    """Between two outputs of the other one."""
    scene = ctx.play(
        say("a"),
        say("b", index=1),
        Say(finish=ERROR, error="scripted"),
        say("c", index=1),
        Say(finish=LENGTH, index=1),
    )
    answer = await ctx.start(scene, n=2).ended()
    expect(answer.error is None, "the failure of a choice ended the request", seen=answer.described)
    seen = {
        index: (choice.text, reason_name(choice.end.finish_reason), choice.end.error_message)
        for index, choice in answer.choices.items()
    }
    expected = {0: ("a", "ERROR", "scripted"), 1: ("bc", "LENGTH", "")}
    expect_equal(seen, expected, "the choices (text, end, what failed) are others")


@client_check("CLI-34")
async def an_answer_goes_on_behind_its_prompt(ctx: ClientContext) -> None:
    """Prompts that end inside a character: the answer completes it, or shows that it never will."""
    face = "🙂".encode()
    for begun, rest, text in ((face[:2], face[2:], "🙂"), (face[:1], b"b", f"{REPLACEMENT}b")):
        messages = [say(bytes([byte])) for byte in rest]
        scene = ctx.play(*messages, say("!"), Say(finish=LENGTH), ending=begun)
        answer = await ctx.start(scene).ok()
        expect_equal(answer.choice.text, f"{text}!", "the answer is not decoded behind its prompt")


@client_check("CLI-34", "first-space")
async def the_first_space_of_an_answer_is_shown(ctx: ClientContext) -> None:
    """The tokenizer leaves out the space that a text begins with; an answer is no beginning."""
    other = await ctx.on(await ctx.backends.shared(Facts(strips_first_space=True)))
    for first, rest in ((" END and", "a"), (" ", "word")):
        script = [part for index in (0, 1) for part in (say(first, index=index), say(rest, index=index))]
        ends = [Say(finish=LENGTH, index=index) for index in (0, 1)]
        answer = await other.start(other.play(*script, *ends), n=2).ok()
        for choice in answer.choices.values():
            expect_equal(choice.text, f"{first}{rest}", "the first space of the answer is lost")
