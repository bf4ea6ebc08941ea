"""Small damage to a valid file.  Each function takes a ``random.Random`` and the file's bytes, and
gives those of a damaged one."""

import copy
import gzip
import io
import json
import pickle
import re
import warnings
import zipfile

import numpy as np

NUMBERS = ["0", "-1", "1", "2", "1.5", "-0.0", "nan", "inf", "-inf", "1e308", "-1e-320", "1e9999",
           "2147483648", "4294967296", "9223372036854775808", "1" + "0" * 400, "9" * 5000,
           "0x10", "1_0", "\u0663", " 7 ", "", "true", "[]", "--1", "1,2", "1\t2"]
TEXTS = ["", "x", "\n", "a\nb", "\0", "\ufeff", "\u2028", "\u00e9", "../x", "[" * 99999,
         '{"a":' * 99999, "(" * 99999, "#" * 200_000, "\t", "\r", '"', "'", ",,,,,", "=1+1",
         "None", "NaN", "__import__('os').system('true')"]
WRONG = [None, True, False, 0, -1, 1, 2, 1.5, -0.0, float("nan"), float("inf"), float("-inf"),
         10 ** 9, 2 ** 31, 2 ** 32, 2 ** 63, 10 ** 30, 10 ** 400, 1e308, 1e-320, "", "x", "3",
         "a\nb", "\0", "x" * 10_000, "\u2028", "\ud800", "../x", "/dev/zero", [], {}, [1, 2],
         {"a": 1}, [[]], [None], "\ue000", "\ue001", "\ue002"]
# What json.dumps does not write: stands in the text for one of the private characters above.
ODD = {"\ue000": "[" * 5000 + "]" * 5000, "\ue001": '{"a":' * 99999, "\ue002": "9" * 5000}
RAN = []                                                  # names of what was unpickled


class Bomb:
    """Unpickling this leaves a mark."""

    def __reduce__(self):
        return RAN.append, ("a file ran code while it was loaded",)


def some(rng):
    """1, seldom 2 or 3."""
    return rng.choice((1, 1, 1, 1, 2, 3))


def of_bytes(rng, raw):
    """Bits flipped, bytes cut out, repeated, exchanged, overwritten by a number."""
    raw = bytearray(raw)
    for _ in range(some(rng)):
        n = len(raw)
        # Heads and tails tell more than what is between them.
        at = rng.choice((rng.randrange(n + 1), rng.randrange(min(n, 64) + 1),
                         n - rng.randrange(min(n, 64) + 1)))
        size = rng.choice((1, 2, 4, 8, rng.randrange(1, 200)))
        kind = rng.randrange(9)
        if kind <= 2 and at < n:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            raw[at:at + 1] = bytes([rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))])
        elif kind == 4:
            del raw[at:]
        elif kind == 5:
            del raw[at:at + size]
        elif kind == 6:
            raw[at:at] = rng.choice((bytes(size), rng.randbytes(size), raw[:size], raw[-size:]))
        elif kind == 7:
            number = rng.choice((0, 1, 2 ** 15, 2 ** 31 - 1, 2 ** 32 - 1, 2 ** 40, 2 ** 63))
            width = rng.choice((2, 4, 8))
            raw[at:at + width] = (number % (1 << 8 * width)).to_bytes(
                width, rng.choice(("little", "big")))
        else:
            other = rng.randrange(n + 1)
            raw[at:at + size], raw[other:other + size] = (raw[other:other + size],
                                                          raw[at:at + size])
    return bytes(raw)


def of_text(rng, raw):
    """Numbers and words replaced, lines cut out, repeated, exchanged, characters put in."""
    text = raw.decode("utf-8", "replace")
    for _ in range(some(rng)):
        kind, lines = rng.randrange(9), text.split("\n")
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        if kind <= 2:
            found = [*re.finditer(r"-?\d+(\.\d+)?|\w+" if kind else r"-?\d+(\.\d+)?", text)]
            if found:
                it = rng.choice(found)
                new = rng.choice((*NUMBERS, rng.choice(found)[0]))
                text = text[:it.start()] + new + text[it.end():]
            continue
        if kind == 3:
            del lines[i]
        elif kind == 4:
            lines[i:i] = [lines[j]] * rng.choice((1, 1, 2, 1000 if len(lines[j]) < 500 else 3))
        elif kind == 5:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 6:
            at = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:at] + rng.choice((*TEXTS, *NUMBERS)) + lines[i][at:]
        elif kind == 7:
            at = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:at] + lines[i][at + rng.choice((1, 1, 2, 5)):]
        else:
            text = text.replace(*rng.choice((("\n", "\r\n"), ("\n", "\r"), ("\n", "\u2028"),
                                             ("\t", " "), (",", ";"), (" ", "  "), ("\n", ""))))
            continue
        text = "\n".join(lines)
    return text.encode("utf-8", "surrogatepass")


def places(value):
    """(container, key) of everything within a value of JSON."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def of_json(rng, raw):
    """Values replaced by others, keys dropped or renamed, all of it nested deeper."""
    try:
        top = [json.loads(raw)]
    except (ValueError, RecursionError):                  # damaged already
        return of_text(rng, raw)
    for _ in range(some(rng)):
        there = [*places(top)]
        box, key = rng.choice(there)
        kind = rng.randrange(8)
        if kind <= 2:
            box[key] = rng.choice(WRONG)
        elif kind == 3 and box is not top:
            del box[key]
        elif kind == 4:
            other, name = rng.choice(there)
            box[key] = copy.deepcopy(other[name])
        elif kind == 5:
            box[key] = rng.choice(([box[key]], {"a": box[key]}, [box[key]] * 2, str(box[key])))
        elif kind == 6 and isinstance(box, dict):
            name = rng.choice((*box, "", "a\nb", "x" * 3000, f"{key}.", key.upper(), "config"))
            box[name] = box.pop(key)
        elif isinstance(box[key], (int, float)) and not isinstance(box[key], bool):
            box[key] = rng.choice((-box[key], box[key] + 1, box[key] - 1, 2 * box[key],
                                   float(box[key]) if abs(box[key]) < 1e300 else 0.0))
    text = json.dumps(top[0])
    for sign, odd in ODD.items():
        text = text.replace(json.dumps(sign), odd)
    return text.encode()


def gzipped(damage):
    """``damage`` of what is in a gzip file."""
    def of_gzip(rng, raw):
        return gzip.compress(damage(rng, gzip.decompress(raw)), 1, mtime=0)
    return of_gzip


def of_safetensors(rng, raw):
    """Its header damaged as JSON, its length made to fit; or other numbers behind it."""
    size = int.from_bytes(raw[:8], "little")
    head, data = raw[8:8 + size], raw[8 + size:]
    if rng.randrange(5):
        head = of_json(rng, head)
    else:
        at = 4 * rng.randrange(len(data) // 4)
        bad = np.float32(rng.choice((np.nan, np.inf, -np.inf, 3e38, 1e-45))).tobytes()
        data = data[:at] + bad + data[at + 4:]
    return len(head).to_bytes(8, "little") + head + data


def write_zeros(archive, name):
    """An array of half a gigabyte of zeros."""
    with archive.open(name, "w", force_zip64=True) as f:
        np.lib.format.write_array_header_1_0(f, {"shape": (1 << 27,), "fortran_order": False,
                                                 "descr": "<f4"})
        for _ in range(512):
            f.write(bytes(1 << 20))


def of_npz(rng, raw):
    """An array with another dtype, shape or number, or whose head lies; one too few or too many;
    other settings; packed in another way.  The sums that the zip file keeps are right."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        files = [(name, archive.read(name)) for name in archive.namelist()]
    packed = zipfile.ZIP_STORED if rng.randrange(20) else rng.choice((
        zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    for _ in range(some(rng)):
        if not files:
            break
        i = rng.randrange(len(files))
        name, npy = files[i]
        if rng.randrange(4) == 0:                         # the texts are few, and tell much
            i, (name, npy) = next(((i, pair) for i, pair in enumerate(files)
                                   if pair[0] in ("config.npy", "state.npy")), (i, (name, npy)))
        kind = rng.randrange(8)
        if kind == 0:
            del files[i]
        elif kind == 1:
            files.insert(i, rng.choice((files[i - 1], (f"{name}x", npy), (f"../{name}", npy),
                                        (name.removesuffix(".npy"), npy), ("a\nb.npy", npy),
                                        (f"h.1.{name}", npy), ("m/x.npy", npy))))
        elif kind == 2:
            files[i] = files[i - 1][0], npy
        elif kind == 3:
            files[i] = name, of_bytes(rng, npy)
        else:
            files[i] = name, of_npy(rng, npy)
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w", compresslevel=1) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")                   # of a name that is there twice
        for name, npy in files:
            archive.writestr(zipfile.ZipInfo(name), npy, packed, 1)      # without the time
        if files and rng.randrange(500) == 0:
            archive.compression = zipfile.ZIP_DEFLATED
            write_zeros(archive, rng.choice(files)[0])
    return f.getvalue()


def of_npy(rng, npy):
    """Another array, or the same with another head."""
    try:
        array = np.load(io.BytesIO(npy), allow_pickle=False)
    except Exception:                                     # damaged already
        return of_bytes(rng, npy)
    if array.dtype.kind == "U" and rng.randrange(8):
        text = rng.choice((of_json, of_json, of_text))(rng, str(array).encode())
        array = np.array(text.decode("utf-8", "replace"))
    else:
        kind = rng.randrange(4)
        if kind == 0 and array.size and array.dtype.kind == "f":
            array = array.copy()
            array.flat[rng.randrange(array.size)] = rng.choice(
                (np.nan, np.inf, -np.inf, 1e300, -1.0, 0.0))
        elif kind == 1:
            array = rng.choice((
                lambda a: a.T, lambda a: a.reshape(-1), lambda a: a[None], lambda a: a[:0],
                lambda a: a[..., :1], lambda a: np.zeros(()), lambda a: np.asfortranarray(a),
                lambda a: np.concatenate([a, a])))(np.atleast_1d(array))
        elif kind == 2:
            array = rng.choice((
                lambda a: np.zeros(a.shape, "U3"), lambda a: np.array([Bomb()]),
                *[lambda a, d=d: np.zeros(a.shape, d) for d in (
                    "f2", "f8", ">f4", "i4", "u1", "?", "c8", "M8[s]", "f4,f4", "V3", "S3",
                    "O")]))(array)
        else:
            return lying(rng, array)
    f = io.BytesIO()
    np.lib.format.write_array(f, array, allow_pickle=True)
    return f.getvalue()


def lying(rng, array):
    """An array file whose head tells of another array than follows."""
    shape = list(array.shape) or [1]
    shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2 ** 20, 2 ** 31, 2 ** 40, 2 ** 62, -1))
    f = io.BytesIO()
    np.lib.format.write_array_header_1_0(f, {
        "shape": tuple(shape), "fortran_order": rng.random() < 0.1,
        "descr": rng.choice((array.dtype.str, array.dtype.str, "<f8", "|O", "<U9", "<U99999999"))})
    return f.getvalue() + rng.choice((array.tobytes(), b"", pickle.dumps(Bomb())))
