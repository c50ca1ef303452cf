"""The seam must give exactly the tokens that tokenising the whole text gives, for every tokenizer and every split."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from stream2llm.seam import Encoding, Seam, TokenisedText

SPECIAL = ["<|im_start|>", "<|im_end|>", "<mask>"]
EMOJI = (
    "\N{GRINNING FACE} \N{FAMILY} \N{WOMAN}\u200d\N{ROCKET} "
    "\N{REGIONAL INDICATOR SYMBOL LETTER D}\N{REGIONAL INDICATOR SYMBOL LETTER E}"
)
CORPUS = [
    "Retrieval is slow, prefill is slow; so prefill while you retrieve. It's 12,345.67 times as good, isn't it?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Falsches Üben von Xylophonmusik quält.",
    "def common_prefix(a, b):\n    for n, (x, y) in enumerate(zip(a, b)):\n\t\tif x != y:\n            return n\n\n\n",
    "上下文流是不断增长的提示前缀。检索的同时进行预填充，答案保持不变。東京は日本の首都です。한국어 문장도 있습니다.",
    "e\u0301 a\u0308 n\u0303 \u1112\u1161\u11ab ﬁne ½ ① Ⅷ \u0130stanbul \u00adsoft\u200bzero",
    f"{EMOJI} <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<mask>   <mask>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 00000000000000000000 !!!!!!!!!!!!!!! ================ \t\t\t   \n \n\n  x",
]
LONG = " ".join(random.Random(seed).choice(CORPUS) for seed in range(40))


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def byte_level_with_prefix_space() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return trained(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def digits_in_threes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    pattern = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return trained(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def one_long_word() -> Tokenizer:
    """As Llama 2 and Gemma: no pre-tokenizer at all, the merges see the whole text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    tokenizer = trained(tokenizer, trainers.BpeTrainer, special_tokens=["<unk>"])
    tokenizer.pre_tokenizer = None
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return trained(tokenizer, trainers.WordPieceTrainer, special_tokens=["[UNK]"])


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return trained(tokenizer, trainers.UnigramTrainer, special_tokens=["<unk>"], unk_token="<unk>")


def looking_ahead() -> Tokenizer:
    """A normaliser whose outcome depends on what follows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(r"\r\n|\r(?!\n)"), "\n"),
            normalizers.Replace(Regex(r"-+(?=\n)"), "—"),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def trained(tokenizer: Tokenizer, trainer: Callable[..., object], **options: object) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS * 3, trainer(vocab_size=600, show_progress=False, **options))
    tokenizer.add_special_tokens([*SPECIAL[:2], AddedToken("<mask>", lstrip=True, rstrip=True, special=True)])
    return tokenizer


def smollm2() -> Tokenizer:
    from stream2llm.embedded import write_tokenizer

    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        return Tokenizer.from_file(str(Path(folder, "tokenizer.json")))


TOKENIZERS = [
    byte_level,
    byte_level_with_prefix_space,
    digits_in_threes,
    one_long_word,
    word_piece,
    unigram,
    looking_ahead,
    smollm2,
]
made = cache(lambda make: make())


def encoder(make: Callable[[], Tokenizer]) -> Callable[[str], Encoding]:
    tokenizer = made(make)

    def encode(text: str) -> Encoding:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return Encoding(encoding.ids, encoding.offsets)

    return encode


def write(seam: Seam, held: TokenisedText, text: str) -> int:
    """Move `held` on to `text`; the number of tokens kept."""
    splice = seam.retokenise(held, text)
    held.apply(splice)
    return splice.keep


def assert_as_one(held: TokenisedText, encode: Callable[[str], Encoding], text: str) -> None:
    whole = encode(text)
    assert list(held.ids) == list(whole.ids)
    if whole.offsets is not None:
        assert list(zip(held.starts, held.ends, strict=True)) == list(whole.offsets)


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from([*CORPUS, *SPECIAL, EMOJI, " ", "  ", "\n", "\r", "\r\n", "-", "a", "1", "\u0301", "\u0308", "'s"]),
    st.builds(str.__mul__, st.sampled_from(["a", " ", "1", "\u0323\u0301", "=", "中"]), st.integers(1, 150)),
)


@pytest.mark.parametrize("make", TOKENIZERS)
class TestExactness:
    def test_split_at_every_character(self, make: Callable[[], Tokenizer]) -> None:
        encode = encoder(make)
        seam, held = Seam(encode), TokenisedText()
        text = (LONG + "\n".join(CORPUS))[-3000:]
        for end in range(1500, len(text) + 1):
            write(seam, held, text[:end])
            if end % 7 == 0 or end > len(text) - 300:
                assert_as_one(held, encode, text[:end])

    @settings(max_examples=80, deadline=None)
    @given(parts=st.lists(pieces, min_size=1, max_size=12))
    def test_appends_of_anything(self, make: Callable[[], Tokenizer], parts: list[str]) -> None:
        encode = encoder(make)
        seam, held, text = Seam(encode), TokenisedText(), LONG[:1500]
        write(seam, held, text)
        for part in parts:
            text += part
            write(seam, held, text)
            assert_as_one(held, encode, text)

    @settings(max_examples=80, deadline=None)
    @given(at=st.floats(0, 1), cut=st.integers(0, 200), part=pieces)
    def test_replacements_anywhere(self, make: Callable[[], Tokenizer], at: float, cut: int, part: str) -> None:
        encode = encoder(make)
        seam, held = Seam(encode), TokenisedText()
        write(seam, held, LONG)
        where = int(at * len(LONG))
        text = LONG[:where] + part + LONG[where + cut :]
        write(seam, held, text)
        assert_as_one(held, encode, text)

    def test_a_special_token_written_in_two_halves(self, make: Callable[[], Tokenizer]) -> None:
        encode = encoder(make)
        for special in SPECIAL:
            for cut in range(1, len(special)):
                seam, held = Seam(encode), TokenisedText()
                for text in (LONG + special[:cut], LONG + special, LONG + special + "x"):
                    write(seam, held, text)
                    assert_as_one(held, encode, text)


@pytest.mark.parametrize("make", TOKENIZERS)
def test_an_append_tokenises_a_bounded_stretch(make: Callable[[], Tokenizer]) -> None:
    lengths: list[int] = []
    inner = encoder(make)

    def encode(text: str) -> Encoding:
        lengths.append(len(text))
        return inner(text)

    seam, held, text = Seam(encode), TokenisedText(), ""
    prose = (CORPUS[0] + " " + CORPUS[1] + " ") * 60
    for end in range(0, len(prose), 60):
        text = prose[:end]
        write(seam, held, text)
    early, late = lengths[len(lengths) // 4 : len(lengths) // 2], lengths[-len(lengths) // 4 :]
    assert max(late) < 1500 < len(text)
    assert sum(late) / len(late) <= 1.5 * sum(early) / len(early)


def test_a_replacement_keeps_the_tokens_before_it() -> None:
    encode = encoder(byte_level)
    seam, held = Seam(encode), TokenisedText()
    write(seam, held, LONG)
    tokens = len(held.ids)
    at = len(LONG) * 3 // 4
    assert write(seam, held, LONG[:at] + " something else") > tokens // 2


def test_a_tokenizer_without_offsets_tokenises_in_full() -> None:
    encode = encoder(byte_level)
    seam, held = Seam(lambda text: Encoding(encode(text).ids, None)), TokenisedText()
    for end in (1000, 1001, 2000):
        write(seam, held, LONG[:end])
        assert list(held.ids) == list(encode(LONG[:end]).ids)
        assert not held.ends
    assert write(seam, held, LONG[:2000] + "x") > 100  # what is common is kept all the same


def test_a_change_of_a_tokenizers_mind_far_back_is_noticed() -> None:
    """Given a tokenizer that, against all rules, looks at the end of the text to tokenise its beginning."""
    plain = encoder(byte_level)

    def whimsical(text: str) -> Encoding:
        encoding = plain(text)
        shift = 1 if text.endswith("!") else 0
        return Encoding([i + shift for i in encoding.ids], encoding.offsets)

    seam, held = Seam(whimsical), TokenisedText()
    for text in (LONG, LONG + "!", LONG + "!?"):
        write(seam, held, text)
        assert_as_one(held, whimsical, text)
