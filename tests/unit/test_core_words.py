"""What a message means before a model sees it: commands, bare assents, requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.words import COMMANDS, Command, command_of, is_bare_assent


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("form", ["{}", " {} ", "/{}", "{}!", "atlas {}", "/atlas {}", "{}?"])
def test_a_command_is_the_whole_text_in_any_dress(name: str, form: str) -> None:
    """Each command is understood with blanks, a slash, the bot's name, capitals or a closing mark."""
    assert command_of(form.format(name)) == Command(name)
    assert command_of(form.format(name).upper()) == Command(name)


@pytest.mark.parametrize("name", ["show", "continue", "stop"])
def test_three_commands_take_a_run_id(name: str) -> None:
    """show, continue and stop take a run id; it comes back in lower case."""
    assert command_of(f"{name} K7D2M9QA") == Command(name, "k7d2m9qa")


@pytest.mark.parametrize(
    "text",
    [
        "continue with Henderson",
        "show payments",
        "show me the runs",
        "stop it",
        "stop segments",
        "help me",
        "runs k7d2m9qa",
        "show k7d2m9q",
        "show k7d2m9qaa",
        "",
        "   ",
        "continue k7d2m9qa please",
    ],
)
def test_a_request_that_begins_like_a_command_stays_a_request(text: str) -> None:
    """Only the whole text is a command; an eight-letter word is no run id, since a run id has a digit."""
    assert command_of(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "yes", "Yes!", "YES.", "yes, please", "go ahead, thanks!", "ok — thanks", "ok👍", "👍🏽", ":+1::skin-tone-3:",
        "Thanks a lot!!! 🙏", "(yes)", '"yes"', "yes?", "sounds good to me", "I approve", "approve it", "let’s do it",
        "yes yes yes", "*yes*", "❤️", "thank you so much", "ok then", "Yes, Atlas", "do it\nthanks",
    ],
)  # fmt: skip
def test_agreement_and_thanks_are_bare_assents(text: str) -> None:
    """Whatever only agrees or thanks is no instruction, or it would supersede what waits for a click."""
    assert is_bare_assent(text)


@pytest.mark.parametrize(
    "text",
    [
        "yes and send it to Bob too", "ok but use 300 units", "no", "not ok", "no thanks", "yes, cancel it",
        "good morning", "go to account 4471", "thanks, now draft another", "send it to Bob", "approve the other one",
        "wait", "", "...", "?", ":eyes:", "Atlas", "do not do it", "okra", "yesterday", "yes 4471",
    ],
)  # fmt: skip
def test_a_request_that_begins_with_yes_stays_a_request(text: str) -> None:
    """One word beyond agreement makes it an instruction; a no, a question mark and an unknown emoji are none."""
    assert not is_bare_assent(text)


@given(st.text())
def test_any_text_is_judged_without_an_error(text: str) -> None:
    """Whatever people type is judged, and never both a command and an assent."""
    assert not (is_bare_assent(text) and command_of(text) is not None)


@given(st.sampled_from(["yes", "ok", "thanks", "go ahead"]), st.from_regex(r"[b-df-hj-np-tv-xz]{6,12}", fullmatch=True))
def test_an_assent_with_a_strange_word_is_an_instruction(assent: str, word: str) -> None:
    """An assent never swallows a word that it does not know."""
    assert not is_bare_assent(f"{assent} {word}")
    assert not is_bare_assent(f"{word} {assent}")
