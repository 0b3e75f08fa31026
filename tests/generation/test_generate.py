"""A small Llama with random weights, from PyTorch to text: tokens equal to PyTorch's, states, errors, the command."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, QnnError
from qnn_ext.generation import Generated, LanguageModel, Sampling, generate, load_tokenizer, perplexity

torch = pytest.importorskip("torch")

TUTORIALS = Path(__file__).parents[2] / "tutorials"
LENGTH = 24
PROMPT = [3, 7, 1, 30, 12, 5]


@pytest.fixture(scope="module")
def llama():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TUTORIALS))
        import llama

        yield llama


@pytest.fixture(scope="module")
def model(llama):
    config = llama.Config(width=16, hidden=24, layers=2, heads=4, kv_heads=2, vocabulary=32, length=LENGTH)
    return llama.random_llama(config)


@pytest.fixture(scope="module")
def engines(model, tmp_path_factory):
    """The model for one token at a time, and for four, both loaded from files, and from one file for both."""
    folder, modules = tmp_path_factory.mktemp("llama"), []
    for count in (1, 4):
        program = torch.export.export(model, (torch.ones(1, count, dtype=torch.int64), torch.arange(count)))
        modules.append(qnn_ext.from_pytorch(program))
        qnn_ext.build(modules[-1], num_threads=1).save(folder / f"llama{count}.qnn")
    qnn_ext.build(modules, num_threads=1).save(folder / "llama.qnn")
    torch.export.save(program, folder / "llama4.pt2")
    return folder, [qnn_ext.load(folder / f"llama{count}.qnn") for count in (1, 4, "")]


@torch.no_grad()
def by_pytorch(model, prompt, count):
    """Greedy, in one call for all tokens each time: without the cache's help."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor([tokens]), torch.arange(len(tokens)))
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(params=["files", "one file"])
def language_model(request, engines):
    one, four, both = engines[1]
    found = LanguageModel(both.clone() if request.param == "one file" else [one.clone(), four.clone()])
    found.reset()
    return found


def test_greedy_equals_pytorch(model, engines, language_model):
    expected = by_pytorch(model, PROMPT, 16)
    assert list(generate(language_model, PROMPT, 16)) == expected
    assert language_model.position == len(PROMPT) + 15
    alone = LanguageModel(engines[1][0].clone())
    progress = Generated()
    assert list(generate(alone, PROMPT, 16, progress=progress)) == expected == progress.tokens
    assert progress.prompt == 6 and progress.prefill > 0 and progress.first >= progress.prefill and progress.decode > 0


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_prompts_of_all_lengths(count, model, language_model):
    """Whole chunks, padded ones and single tokens leave the same logits, and the same cache behind."""
    prompt = [*PROMPT, 9][:count]
    found = language_model.logits(prompt)
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), torch.arange(count))[0, -1].numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    keys = language_model.state()[1][0]
    assert keys[:, :, :count].any(axis=(0, 1, 3)).all() and not keys[:, :, count:].any()


def test_the_cache_moves_with_the_text(language_model):
    """A state is a prefix that several texts go on from."""
    language_model.logits(PROMPT)
    prefix = language_model.state()
    one = [language_model.logits([4]), language_model.logits([5])]
    language_model.restore(prefix)
    language_model.logits([8])
    language_model.restore(prefix)
    np.testing.assert_array_equal([language_model.logits([4]), language_model.logits([5])], one)
    language_model.reset()
    assert language_model.position == 0 and not any(value.any() for value in language_model.state()[1])


def test_one_file_for_two_lengths(engines):
    """Weights are in it once, and in memory; both engines go on from the same states."""
    _, (one, four, both) = engines
    (other,) = both.others
    assert [engine.inputs[0].shape for engine in (both, other)] == [(1, 1), (1, 4)] and not other.others
    assert both.memory == other.memory and both.memory.weights == max(one.memory.weights, four.memory.weights)
    for engine in (both.clone(), pickle.loads(pickle.dumps(both))):
        (other,) = engine.others
        assert other.shares_states_with(engine) and not other.shares_states_with(both)
        tokens, positions = np.array([PROMPT[:4]]), np.arange(4)
        found = [other(tokens, positions), engine(np.array([[7]]), np.array([4]))]
        expected = [four(tokens, positions)]
        one.set_states(four.state_values())
        expected.append(one(np.array([[7]]), np.array([4])))
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
        assert any(value.any() for value in engine.state_values())
        other.reset_state()
        assert not any(value.any() for value in engine.state_values())


def test_an_engine_that_has_not_run_resets_what_another_left(engines):
    engine = engines[1][2].clone()
    engine.others[0](np.array([PROMPT[:4]]), np.arange(4))
    engine.reset_state()
    assert not any(value.any() for value in engine.others[0].state_values())


def test_the_end_of_a_text(language_model):
    expected = list(generate(language_model, PROMPT, 8))
    language_model.reset()
    found = list(generate(language_model, PROMPT, 8, Sampling(), ends={expected[3]}))
    assert found == expected[: expected.index(expected[3])]


def test_beyond_the_cache(language_model):
    for token in generate(language_model, PROMPT, LENGTH - len(PROMPT) + 1):
        assert 0 <= token < 32
    before = language_model.state()
    with pytest.raises(InputError, match=r"at positions 24 … 24 cannot be computed: .*index 24 is out of range"):
        language_model.logits([1])
    np.testing.assert_array_equal(language_model.state()[1], before[1])


def test_beyond_a_mask():
    """A model that counts its tokens by a mask: at its end there is no position left that it could be told."""
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["rows"]),
        helper.make_node("ReduceSum", ["mask"], ["count"], keepdims=0),
        helper.make_node("Cast", ["count"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["rows", "past"], ["present"]),
        helper.make_node("Mul", ["present", "number"], ["logits"]),
    ]
    inputs = [value("tokens", TensorProto.INT64, [1, 1]), value("mask", TensorProto.INT64, [1, 4])]
    inputs.append(value("past", TensorProto.FLOAT, [1, 1, 3]))
    outputs = [value(name, TensorProto.FLOAT, [1, 1, 3]) for name in ("logits", "present")]
    table = numpy_helper.from_array(np.eye(3, dtype=np.float32), "table")
    graph = helper.make_graph(nodes, "counting", inputs, outputs, [table])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    module = qnn_ext.from_onnx(proto.SerializeToString(), states={"past": "present"})
    found = LanguageModel(qnn_ext.build(module, num_threads=1))
    assert [found.logits([token]).tolist() for token in (0, 1, 1, 2)] == [[1, 0, 0], [2, 2, 0], [3, 6, 0], [4, 8, 4]]
    with pytest.raises(InputError, match=r"at positions 4 … 4 cannot be computed: .* has room for 4"):
        found.logits([0])
    assert found.position == 4


@pytest.mark.parametrize("tokens, message", [([32], "token 32 is beyond the vocabulary of 32"), ([], "no tokens")])
def test_tokens_that_do_not_exist(tokens, message, language_model):
    with pytest.raises(InputError, match=message):
        language_model.logits(tokens)


def test_an_engine_refuses_tokens_beyond_the_vocabulary(engines):
    engine = engines[1][0].clone()
    for token in (32, -1, 2**40):
        with pytest.raises(InputError, match=f"index {token} is out of range 0 … 31"):
            engine(np.array([[token]]), np.array([0]))


def test_other_models():
    digits = qnn_ext.build(qnn_ext.from_tflite(TUTORIALS.parent / "qnn_ext" / "data" / "digits_cnn_int8.tflite"))
    with pytest.raises(QnnError, match="no language model that can be run token by token"):
        LanguageModel(digits)


# ---- tokenizers and the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer of bytes and a few merges."""
    tokenizers = pytest.importorskip("tokenizers")
    found = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), special_tokens=["</s>"]
    )
    found.train_from_iterator(["once upon a time there was a time once"], trainer)
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    found.save(str(path))
    return path


def test_text_comes_in_whole_characters(words):
    tokenizer = load_tokenizer(words)
    tokens = tokenizer.encode("a time, größer 🙂 once")
    stream = tokenizer.stream(tokens[:1])
    pieces = [stream.add(token) for token in tokens[1:]]
    assert "".join(pieces) == " time, größer 🙂 once"
    assert "" in pieces and not any("\ufffd" in piece for piece in pieces)
    assert len(tokenizer.ends) == 1


def test_sentencepiece(llama, tmp_path):
    """A file in llama2.c's form: pairs merge by their scores, and spaces stay."""
    pytest.importorskip("sentencepiece")
    import struct

    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), " a", " t", " to", "to"]
    scores = [0.0] * 259 + [-1.0, -2.0, -4.0, -3.0]
    letters = [" ", "a", "t", "o", "b"]
    content = struct.pack("i", 7)
    for piece, score in [*zip(pieces, scores, strict=True), *((letter, -100.0) for letter in letters)]:
        content += struct.pack("fi", score, len(piece.encode())) + piece.encode()
    (tmp_path / "tok.bin").write_bytes(content)
    llama.write_tokenizer(tmp_path / "tok.bin", tmp_path / "tok.model")
    tokenizer = load_tokenizer(tmp_path / "tok.model")
    assert tokenizer.encode("a to é") == [1, 259, 261, 263, 3 + 0xC3, 3 + 0xA9]
    stream = tokenizer.stream([1])
    assert "".join(stream.add(token) for token in tokenizer.encode("a to é")[1:]).strip() == "a to é"
    assert tokenizer.ends == {1, 2}


@pytest.mark.parametrize("content", [b"{}", b"no tokenizer", b""])
def test_files_that_are_no_tokenizers(content, tmp_path):
    pytest.importorskip("tokenizers")
    pytest.importorskip("sentencepiece")
    (tmp_path / "tokenizer").write_bytes(content)
    with pytest.raises(QnnError, match="tokenizer"):
        load_tokenizer(tmp_path / "tokenizer")


def test_command(cli, engines, model):
    folder, _ = engines
    expected = by_pytorch(model, PROMPT, 5)
    prompt = " ".join(map(str, PROMPT))
    code, out, err = cli("generate", folder / "llama1.qnn", "--prompt", prompt, "-n", "5")
    assert code == 0 and out.strip() == " ".join(map(str, [*PROMPT, *expected]))
    assert "prefill 6 tokens" in err and "decode 5 tokens" in err and "of them states" in err
    code, out, _ = cli(
        "generate", folder / "llama1.qnn", "--prefill", folder / "llama4.qnn", "-p", prompt, "-n", "5", "--json"
    )
    found = json.loads(out)
    assert code == 0 and found["tokens"] == expected and len(found["memory"]) == 2
    code, out, err = cli("generate", folder / "llama.qnn", "-p", prompt, "-n", "5")
    assert code == 0 and out.strip() == " ".join(map(str, [*PROMPT, *expected])) and err.count("states") == 1
    assert all(len(line) <= 80 for line in err.splitlines())
    code, _, err = cli("generate", folder / "llama1.qnn", "-p", prompt, "--cache-dtype", "int8")
    assert code == 1 and "already compiled, and so is its cache: give --cache-dtype to `qnn-ext compile`" in err
    code, _, err = cli("generate", folder / "llama1.qnn", "-p", "Once upon", "-n", "5")
    assert code == 1 and "give --tokenizer FILE" in err


@pytest.mark.parametrize(
    "prompt, message", [("1 99999", "token 99999 is beyond the vocabulary"), ("1 2 " * 20, "cannot be computed")]
)
def test_errors_of_the_command_are_lines_of_their_own(prompt, message, cli, engines):
    folder, _ = engines
    code, out, err = cli("generate", folder / "llama1.qnn", "--prompt", prompt, "-n", "5")
    assert code == 1 and out.endswith("\n") and err.startswith("error: ") and message in err


@pytest.mark.parametrize("dtype, bytes_of_rows", [("model", 4 * 4), ("float16", 4 * 2), ("int8", 4 + 4)])
def test_command_with_a_cache_of_few_bits(dtype, bytes_of_rows, cli, engines, model, tmp_path):
    """The dtype of the cache of a file that is compiled, by one command or by two."""
    folder, _ = engines
    prompt = " ".join(map(str, PROMPT))
    source = folder / "llama4.pt2"
    options = ["-p", prompt, "-n", "6", "--json"]
    code, out, _ = cli("generate", source, *options, "--cache-dtype", dtype, "--threads", "1")
    found = json.loads(out)
    config = model.config
    rows = 2 * config.layers * config.kv_heads * config.length
    assert code == 0 and found["states"] == rows * bytes_of_rows
    code, _, _ = cli("compile", source, "-o", tmp_path / "narrow.qnn", "--cache-dtype", dtype, "--threads", "1")
    assert code == 0
    code, out, _ = cli("generate", tmp_path / "narrow.qnn", *options)
    assert code == 0 and json.loads(out)["tokens"] == found["tokens"]
    if dtype == "model":
        assert found["tokens"] == by_pytorch(model, PROMPT, 6)


def test_whatever_is_no_token(language_model):
    """Whole numbers of any kind, in any sequence; nothing is rounded to one."""
    expected = list(generate(language_model, [1, 2], 2))
    for prompt in (np.array([1, 2]), (1, np.int64(2)), iter([1, 2])):
        language_model.reset()
        assert list(generate(language_model, prompt, 2)) == expected
    for prompt in ("ab", ["a"], [1.5], [None], [[1]], None, 3, np.array([1.5]), [], [2**70]):
        with pytest.raises(InputError):
            next(generate(language_model, prompt, 2))
        with pytest.raises(InputError):
            perplexity(language_model, [prompt])
    for arguments in (
        *({"most": most} for most in (1.5, "3", None)),
        *({"ends": ends} for ends in (None, "ab")),
        {"sampling": 3},
        {"progress": 3},
        *({"model": model} for model in (None, language_model.engines[0])),
    ):
        with pytest.raises(InputError):
            next(generate(**{"model": language_model, "prompt": [1], "most": 2, **arguments}))
    for model, texts in ((None, [[1, 2]]), (language_model.engines[0], [[1, 2]]), (language_model, 3)):
        with pytest.raises(InputError):
            perplexity(model, texts)


@pytest.mark.parametrize("engines", [None, 3, [3], [], "ab", {}])
def test_whatever_is_no_engine(engines):
    with pytest.raises(InputError, match="made of an Engine"):
        LanguageModel(engines)


def test_whatever_is_no_state(language_model):
    language_model.reset()
    language_model.logits([1, 2])
    place, values = state = language_model.state()
    after = language_model.logits([3])
    for wrong in (None, 3, (1, 2), (0, None), ("a", values), (1.5, values), (0, values[1:]), (0, [1] * len(values))):
        with pytest.raises(InputError):
            language_model.restore(wrong)
        assert language_model.position == place + 1, "nothing changed"
    language_model.restore(state)
    np.testing.assert_array_equal(language_model.logits([3]), after)
