"""Small tokenizers of every family, built in memory."""

from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "The quick brown fox jumps over the lazy dog. stream streams streaming",
    "こんにちは世界。東京は日本の首都です。",
    "def add(a, b):\n    return a + b\n\n",
    "family 👩‍👩‍👧‍👦 flag 🇯🇵 thumbs 👍🏽 café naïve",
) * 4
SPECIAL = ["<|eos|>", "<|im_end|>", "<｜end▁of turn｜>"]


@cache
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["an added token", "Ġodd"])
    return tokenizer


@cache
def byte_fallback(strip: int = 1) -> Tokenizer:
    """Llama-2's decoder: ▁ for space, <0xNN> for bytes outside the vocabulary."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", *"abcdefghijklmnopqrstuvwxyz.,é日本", "▁the", "▁a", "ing", "▁stream", "st", "op"]
    vocab = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.decoder = byte_fallback_decoder(strip)
    return tokenizer


def byte_fallback_decoder(strip: int) -> decoders.Decoder:
    """▁ for a space, <0xNN> for a byte."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", strip, 0)] if strip else steps)


@cache
def word_piece(corpus: Sequence[str] = CORPUS, vocab_size: int = 300) -> Tokenizer:
    """BERT's: the decoder joins and tidies."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[UNK]", "[PAD]", "[SEP]", "[CLS]"]
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@cache
def unigram(corpus: Sequence[str] = CORPUS, vocab_size: int = 200) -> Tokenizer:
    """A decoder that no table knows."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@cache
def odd_byte_level() -> Tokenizer:
    """Byte-level BPE behind a decoder that the table does not know."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.decoder = decoders.Sequence([decoders.Replace("lazy", "busy"), decoders.ByteLevel()])
    return tokenizer


@cache
def stripped_byte_level(start: int = 1, stop: int = 0) -> Tokenizer:
    """Byte-level BPE whose texts lose spaces at their ends.

    With `stop` the library panics at texts that are shorter than what is taken off.
    """
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", start, stop)])
    return tokenizer


def every_family() -> dict[str, Tokenizer]:
    return {
        "byte level": byte_level(),
        "byte fallback": byte_fallback(),
        "byte fallback, nothing stripped": byte_fallback(0),
        "word piece": word_piece(),
        "unigram": unigram(),
        "odd byte level": odd_byte_level(),
        "byte level, stripped": stripped_byte_level(),
        "byte level, three stripped": stripped_byte_level(3),
    }


def expected_text(tokenizer: Tokenizer, ids: list[int], skip: bool) -> str:
    """What `decode` gives; but a byte run keeps the characters that came before its first bad byte."""
    decoder, special = facts(tokenizer)
    if "ByteFallback" not in decoder:
        return tokenizer.decode(ids, skip_special_tokens=skip)
    hidden = special if skip else frozenset()
    pieces: list[str | bytes] = []
    for token_id in ids:
        piece = tokenizer.id_to_token(token_id)
        if piece is None or token_id in hidden:
            continue
        if len(piece) == 6 and piece.startswith("<0x"):
            if not pieces or isinstance(pieces[-1], str):
                pieces.append(b"")
            pieces[-1] += bytes.fromhex(piece[3:5])  # type: ignore[operator]  # it is bytes
        else:
            pieces.append(piece.replace("▁", " "))
    text = "".join(piece if isinstance(piece, str) else run_text(piece) for piece in pieces)
    return text.removeprefix(" ") if "Strip" in decoder else text


@cache
def facts(tokenizer: Tokenizer) -> tuple[str, frozenset[int]]:
    """Its decoder in words and its special ids; asked once, because the library copies all of them."""
    added = tokenizer.get_added_tokens_decoder()
    return str(tokenizer.decoder), frozenset(token_id for token_id, token in added.items() if token.special)


def prompt_text(tokenizer: Tokenizer, prompt: list[int], skip: bool) -> str:
    """The complete characters of a prompt: what stays, whichever bytes follow."""
    text = expected_text(tokenizer, prompt, skip)
    if (first := byte_id(tokenizer, 0x80)) is None:
        return text
    # Bytes that complete every character: after some first bytes 0x80 may not follow, then 0xA0 does.
    for second in (first, byte_id(tokenizer, 0xA0)):
        for rest in ([], [first], [first, first]):
            other = expected_text(tokenizer, [*prompt, second, *rest], skip)
            text = text[: common_prefix(text, other)]
    return text


def common_prefix(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def byte_id(tokenizer: Tokenizer, byte: int) -> int | None:
    """The id of a single byte from 0x80 on, in either spelling."""
    character = chr(byte + 0xA2) if byte < 0xA1 else chr(byte)
    found = tokenizer.token_to_id(f"<0x{byte:02X}>")
    return tokenizer.token_to_id(character) if found is None else found


def run_text(run: bytes) -> str:
    try:
        return run.decode()
    except UnicodeDecodeError as error:
        return run[: error.start].decode() + "\ufffd" * (len(run) - error.start)
