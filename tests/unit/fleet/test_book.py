"""Who belongs to a fleet: tokens that count once, for one name, for a while; certificates."""

from __future__ import annotations

import json

import pytest
from singularity_proxy.errors import BadRequest, Conflict, Forbidden, NotFound
from singularity_scheduler.fleet.book import TOKEN_LIFE_S, Book

NOW = 1_000_000.0


def member(**more: float) -> Book:
    book = Book()
    book.admit("a", "01", NOW + more.get("life", 100.0), NOW)
    return book


def test_a_token_lets_its_node_join_once() -> None:
    book = Book()
    token = book.make_token("a", NOW)
    book.check_token(token, "a", NOW + 1)  # looking uses nothing up
    book.use_token(token, "a", NOW + 2)
    with pytest.raises(Forbidden, match="was used 3 s ago, and lets only one join"):
        book.use_token(token, "a", NOW + 5)


def test_a_token_is_bound_to_its_name() -> None:
    book = Book()
    token = book.make_token("a", NOW)
    with pytest.raises(Forbidden, match="is for the node 'a', not for 'b'"):
        book.use_token(token, "b", NOW)
    book.use_token(token, "a", NOW)  # and is as good as before


def test_a_token_runs_out_after_fifteen_minutes() -> None:
    book = Book()
    token = book.make_token("a", NOW)
    assert TOKEN_LIFE_S == 15 * 60
    book.check_token(token, "a", NOW + TOKEN_LIFE_S - 1)
    with pytest.raises(Forbidden, match="ran out 60 s ago"):
        book.check_token(token, "a", NOW + TOKEN_LIFE_S + 60)


def test_a_token_that_nobody_made_is_refused() -> None:
    book = Book()
    book.make_token("a", NOW)
    with pytest.raises(Forbidden, match="does not know the join token"):
        book.use_token("0" * 64, "a", NOW)


def test_a_new_token_replaces_the_one_that_was_not_used() -> None:
    book = Book()
    old, other = book.make_token("a", NOW), book.make_token("b", NOW)
    new = book.make_token("a", NOW)
    with pytest.raises(Forbidden, match="does not know"):
        book.use_token(old, "a", NOW)
    book.use_token(new, "a", NOW)
    book.use_token(other, "b", NOW)


def test_old_tokens_are_forgotten() -> None:
    book = Book()
    book.make_token("a", NOW)
    book.make_token("b", NOW + 3 * 86_400)
    assert [token.node for token in book.tokens.values()] == ["b"]


def test_the_secret_is_not_kept() -> None:
    book = Book()
    token = book.make_token("a", NOW)
    assert token not in json.dumps(book.to_json())


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "x" * 64])
def test_what_cannot_be_a_name_gets_no_token(name: str) -> None:
    book = Book()
    with pytest.raises(BadRequest, match="cannot be the name of a node"):
        book.make_token(name, NOW)
    assert book == Book()


def test_only_the_certificate_of_the_last_join_counts() -> None:
    book = member()
    book.check("a", "01", NOW + 1)
    book.admit("a", "02", NOW + 200, NOW + 10)
    book.check("a", "02", NOW + 11)
    with pytest.raises(Forbidden, match="a newer certificate was given to the node 'a'"):
        book.check("a", "01", NOW + 11)


def test_a_renewal_leaves_the_one_before_it() -> None:
    book = member()
    book.renew("a", "01", "02", NOW + 200, NOW + 50)
    for serial in ("01", "02"):  # the node may not have got its new one
        book.check("a", serial, NOW + 60)
    book.renew("a", "02", "03", NOW + 300, NOW + 120)
    with pytest.raises(Forbidden, match="newer certificate"):
        book.check("a", "01", NOW + 121)


def test_a_certificate_that_does_not_count_renews_nothing() -> None:
    book = member()
    before = Book.from_json(book.to_json())
    with pytest.raises(Forbidden):
        book.renew("a", "99", "02", NOW + 200, NOW)
    assert book == before


def test_a_certificate_runs_out() -> None:
    book = member(life=100.0)
    with pytest.raises(Forbidden, match="ran out 20 s ago"):
        book.check("a", "01", NOW + 120)


def test_a_stranger_is_no_member() -> None:
    with pytest.raises(Forbidden, match="has no node 'b'"):
        member().check("b", "01", NOW)


def test_a_withdrawn_node_counts_no_more_until_it_joins_again() -> None:
    book = member()
    token = book.make_token("a", NOW)
    book.withdraw("a", NOW + 1)
    with pytest.raises(Forbidden, match="the node 'a' was withdrawn 4 s ago"):
        book.check("a", "01", NOW + 5)
    with pytest.raises(Forbidden, match="was withdrawn"):
        book.renew("a", "01", "02", NOW + 200, NOW + 5)
    with pytest.raises(Forbidden, match="does not know"):  # its open token went with it
        book.use_token(token, "a", NOW + 5)
    with pytest.raises(Conflict, match="withdrawn 9 s ago already"):
        book.withdraw("a", NOW + 10)
    book.admit("a", "03", NOW + 500, NOW + 20)
    book.check("a", "03", NOW + 21)


def test_a_token_can_be_withdrawn_before_anybody_joined() -> None:
    book = Book()
    token = book.make_token("a", NOW)
    book.withdraw("a", NOW)
    with pytest.raises(Forbidden):
        book.use_token(token, "a", NOW)
    with pytest.raises(NotFound, match="no node 'a' has joined"):
        book.withdraw("a", NOW)


def test_the_book_is_the_same_after_its_file() -> None:
    book = member()
    book.use_token(book.make_token("b", NOW), "b", NOW)
    book.renew("a", "01", "02", NOW + 200, NOW)
    book.withdraw("a", NOW)
    assert Book.from_json(json.loads(json.dumps(book.to_json()))) == book
