"""Mistakes that people make in each function of ``functional``, each with a hint.

Each is a change of the library's function: the mathematics stands in one place, and the library's
variables may be renamed.
"""

SUM_FOR_MEAN = "a mean for a sum: each row adds its whole share"
START = "the argument start is not heeded: the first token is at position start"
# function -> {hint: change of its source}
MISTAKES = {
    "linear": {
        "the bias is missing": "x @ w + b -> x @ w",
        "the bias is subtracted": "x @ w + b -> x @ w - b"},
    "linear_backward": {
        SUM_FOR_MEAN: "db = rows.sum(axis=0) -> db = rows.mean(axis=0)",
        "a mean for a sum: x.T @ dy adds up over the rows": "_.T @ rows -> _.T @ rows / len(rows)",
        "only one row: b is added to every row": "rows.sum(axis=0) -> rows[-1]",
        "dx leads back through the transpose of w, also where w is square":
            "dx = dy @ w.T -> dx = dy @ (w if len(w) == w.shape[1] else w.T)",
        "the gradient of the bias is 0: b is added to every row":
            "db = rows.sum(axis=0) -> db = np.zeros_like(rows[0])"},
    "embedding_backward": {
        "an id that stands there more than once gets the gradients of all its places; dw[ids] += "
        "dy keeps one of them, np.add.at(dw, ids, dy) adds them up":
            "np.add.at(dw, ids, dy) -> dw[ids] += dy"},
    "bias": {"the bias is subtracted": "x + b -> x - b"},
    "bias_backward": {
        SUM_FOR_MEAN: "_.sum(axis=0) -> _.mean(axis=0)",
        "only one row: b is added to every row": "_.sum(axis=0) -> _[-1]"},
    "positions": {
        START: "x + w[tokens] -> x + w[:x.shape[1]]",
        "one vector for all tokens: token t gets row start + t": "w[tokens] -> w[start]",
        "the position's vector is added": "x + w[tokens] -> x * w[tokens]"},
    "positions_backward": {
        "a mean for a sum: each sequence of the batch adds its whole share": "_.sum -> _.mean",
        START: "dw[cache.tokens] -> dw[:dy.shape[1]]",
        "only one sequence: w serves all sequences of the batch": "dy.sum(axis=0) -> dy[0]",
        "each position has a row of its own: add over the sequences, not over the tokens":
            "dy.sum(axis=0) -> dy.sum(axis=(0, 1))"},
    "layer_norm": {
        "eps is missing": "_ + eps -> _",
        "the eps belongs under the root": "np.sqrt(_ + eps) -> (np.sqrt(_) + eps)",
        "the variance is the mean square, divided by C, not by C - 1":
            "(centred * centred).mean(axis=-1, keepdims=True) -> "
            "((centred * centred).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1))",
        "divided by the variance, not by its root": "np.sqrt(_) -> (_)",
        "multiplied by the root, not divided by it": "1.0 / np.sqrt(_) -> np.sqrt(_)",
        "xhat is the distance from the mean: the mean is not subtracted":
            "xhat = centred * rstd -> xhat = x * rstd",
        "the variance is the mean square of the distances from the mean":
            "centred * centred -> x * x",
        "each token has its own mean": [
            "x.mean(axis=-1, keepdims=True) -> x.mean()", *(
                (f"x.mean(axis=-1, keepdims=True) -> x.mean({axis})",
                 f"(centred * centred).mean(axis=-1, keepdims=True) -> "
                 f"(centred * centred).mean({axis})") for axis in ("", "axis=0"))],
        "each token has its own variance":
            "(centred * centred).mean(axis=-1, keepdims=True) -> (centred * centred).mean()",
        "the scale comes first, then the bias": "xhat * w + b -> (xhat + b) * w",
        "the bias is missing": "xhat * w + b -> xhat * w",
        "the scale is missing": "xhat * w + b -> xhat + b"},
    "layer_norm_backward": {
        "the mean of g is missing": "g - _ - _1 -> g - _1",
        "the part along xhat is missing": "g - _ - _1 -> g - _",
        "the part along xhat: xhat stands there twice, in the mean and before it": [
            "xhat * (g * xhat).mean(-1, keepdims=True) -> (g * xhat).mean(-1, keepdims=True)",
            "xhat * (g * xhat).mean(-1, keepdims=True) -> xhat * g.mean(-1, keepdims=True)"],
        "the part along xhat: a sum for a mean":
            "(g * xhat).mean(-1, keepdims=True) -> (g * xhat).sum(-1, keepdims=True)",
        "the part along xhat: each row has its own mean":
            "(g * xhat).mean(-1, keepdims=True) -> (g * xhat).mean()",
        "the part along xhat: its mean is of g, which is dy * w, times xhat":
            "(g * xhat).mean(-1, keepdims=True) -> (dy * xhat).mean(-1, keepdims=True)",
        "the part along xhat is subtracted": "g - _ - _1 -> g - _ + _1",
        "each row has its own mean of g": "g.mean(-1, keepdims=True) -> g.mean()",
        "a sum for a mean": "_.mean(-1, keepdims=True) -> _.sum(-1, keepdims=True)",
        "rstd is missing": "_ * rstd -> _",
        "rstd is one over the root: multiply by it": "_ * rstd -> _ / rstd",
        "the scale is missing: g is dy * w": "g = dy * w -> g = dy",
        "the scale comes before the means: they are means of g, which is dy * w":
            "dx = _ -> g = dy; dx = _ * w",
        "the factor xhat is missing: y is xhat * w + b": "dy * xhat -> dy",
        "what arrives at the scale and at the bias is dy, without w": [
            "dy * xhat -> dy * w * xhat",
            "dy.reshape(-1, len(w)).sum(axis=0) -> (dy * w).reshape(-1, len(w)).sum(axis=0)"],
        SUM_FOR_MEAN: "dy.reshape(-1, len(w)).sum(axis=0) -> dy.reshape(-1, len(w)).mean(axis=0)",
        "a mean for a sum in dw: each token adds its whole share":
            "(dy * xhat).reshape(-1, len(w)).sum(axis=0) -> "
            "(dy * xhat).reshape(-1, len(w)).mean(axis=0)",
        "the mean and the variance depend on x, too": "(g - _ - _1) * rstd -> g * rstd"},
    "gelu": {
        "the factor 1/2 is missing": "0.5 * x * (1.0 + t) -> x * (1.0 + t)",
        "that is the exact form; GPT-2 has the one with tanh": "0.5 * x * _ -> gelu_exact(x)[0]",
        "the cube is missing in u": "GELU_B * x * x * x -> GELU_B * x"},
    "gelu_backward": {
        "the factor du/dx is missing: u depends on x too": "_ * du -> _",
        "the 3 of the cube's derivative is missing in du/dx": "3.0 * GELU_B -> GELU_B",
        "a product has two terms: where the tanh stays as it is": "0.5 * (1.0 + t) + _ -> _",
        "the derivative of tanh(u) is 1 - t^2": [
            "1.0 - t * t -> 1.0 - t", "1.0 - t * t -> 1.0 + t * t"],
        "the second term has x/2, as y is x/2 (1 + t)": "0.5 * x * _ -> x * _",
        "the factor dy is missing": "dy * _ -> np.ones_like(dy) * _",
        "a product has two terms: t depends on x, too": "_ + 0.5 * x * (1.0 - t * t) * du -> _"},
    "gelu_exact": {
        "that is GPT-2's form with tanh; this one has the error function": "x * _ -> gelu(x)[0]",
        "the error function takes x / sqrt(2)": "x * ndtr(x) -> x * ndtr(x * math.sqrt(2.0))"},
    "gelu_exact_backward": {
        "a product has two terms: P(x), and x times its density": "x * np.exp(_) -> np.exp(_)",
        "a product has two terms, of which you have the first": "ndtr(x) + _ -> ndtr(x)",
        "a product has two terms, of which you have the second": "ndtr(x) + _ -> _",
        "the density has the factor 1 / sqrt(2 pi)": "_ * (1.0 / math.sqrt(2.0 * math.pi)) -> _"},
    "relu": {"below 0 it is 0": "np.maximum(x, 0.0) -> np.abs(x)"},
    "relu_backward": {
        "the gradient is dy or 0: the slope is 1, not x": "_ > 0.0 -> np.maximum(_, 0.0)",
        "below 0 the slope is 0, and no dy gets through": "dy * (cache.x > 0.0) -> dy",
        "it is the sign of x that counts, not that of dy": "dy * _ -> np.maximum(dy, 0.0)"},
    "softmax": {
        "the exponential overflows: subtract the largest x of each row first": "x - _ -> x",
        "the exponential overflows: subtract the largest x of each row, not of all rows":
            "x.max(axis=-1, keepdims=True) -> x.max()",
        "each row sums to 1, not the whole array": [
            ("e.sum(axis=-1, keepdims=True) -> e.sum()", change)
            for change in ("x.max(axis=-1, keepdims=True) -> x.max()", "x - _ -> x", "e -> e")],
        "each row sums to 1, along the last axis": [
            "e.sum(axis=-1, keepdims=True) -> e.sum(axis=0, keepdims=True)", *(
                (f"x.max(axis=-1, keepdims=True) -> x.max(axis={axis}, keepdims=True)",
                 f"e.sum(axis=-1, keepdims=True) -> e.sum(axis={axis}, keepdims=True)")
                for axis in (0, 1, -2))]},
    "softmax_backward": {
        "the sum is weighted: each dy_j counts with its y_j": [
            f"(dy * y).sum(axis=-1, keepdims=True) -> dy.{total}(axis=-1, keepdims=True)"
            for total in ("sum", "mean")],
        "the factor y is missing": "y * (dy - _) -> dy - _",
        "the sum is over the products dy_j y_j: dy is missing":
            "(dy * y).sum(axis=-1, keepdims=True) -> y",
        "a mean for a sum: the weights y already sum to 1":
            "(dy * y).sum(axis=-1, keepdims=True) -> (dy * y).mean(axis=-1, keepdims=True)",
        "that is the diagonal of the Jacobian alone: each x moves all outputs of its row":
            "(dy * y).sum(axis=-1, keepdims=True) -> dy * y",
        "the sum runs over one row": "_.sum(axis=-1, keepdims=True) -> _.sum()",
        "the outputs of a row share one sum: each x moves all of them":
            "_ - (dy * y).sum(axis=-1, keepdims=True) -> _"},
    "dropout_backward": {
        "the scale 1/(1-p) is missing": "dy * cache.mask -> dy * (cache.mask > 0)",
        "a dropped entry gets no gradient": "dy * cache.mask -> dy"},
    "attention": {
        "the scores are not divided by sqrt(D)": "_ / math.sqrt(D) -> _",
        "D is the channels of one head": "math.sqrt(D) -> math.sqrt(D * H)",
        "divided by D, not by its root": "math.sqrt(D) -> D",
        "the causal mask is missing": "causal -> False",
        "the mask is there even where causal is False": "causal -> True",
        "the mask comes before the softmax":
            "probabilities, _ = softmax(scores) -> probabilities, _ = softmax("
            "q @ keys.swapaxes(-1, -2) / math.sqrt(D))\nif causal:\n    probabilities = "
            "np.tril(probabilities, k.shape[2] - q.shape[2])",
        "queries and keys are exchanged": "q @ keys.swapaxes(-1, -2) -> "
            "keys[:, :, -q.shape[2]:] @ np.pad(q, [(0, 0), (0, 0), (k.shape[2] - q.shape[2], 0), "
            "(0, 0)]).swapaxes(-1, -2)",
        "y is the shares times the values": "dropped @ values -> dropped @ keys",
        "each head of keys serves several heads of queries in a row: repeat each, not all in turn":
            "repeat_heads(_, H) -> np.tile(_, (1, H // _.shape[1], 1, 1))",
        "the shares of each query, a row, sum to 1":
            "softmax(scores) -> softmax(scores.swapaxes(-1, -2))",
        "a masked score of 0 still gets a share: for which score is the share 0?":
            "scores + causal_mask(*_, scores.dtype) -> "
            "scores * np.tril(np.ones(scores.shape[-2:]))",
        "bias is not heeded: add it to the scores, or do without this argument, which only "
        "relative positions need": "bias is not None -> False",
        "the probabilities are not dropped out": "dropout(_, p, rng) -> dropout(_, 0.0, rng)"},
    "attention_backward": {
        "dQ and dK are exchanged": "return dq, dk, dv, _ -> return dk, dq, dv, _",
        "in dS the weighted sum is missing in the softmax's backward":
            "softmax_backward(da, SoftmaxCache(probabilities)) -> probabilities * da",
        "between dA and dS stands the softmax: the way back leads through the softmax":
            "softmax_backward(da, SoftmaxCache(probabilities)) -> da.copy()",
        "in dS, the softmax had the probabilities before dropout":
            "SoftmaxCache(probabilities) -> SoftmaxCache(dropped)",
        "in dV, a value collects from the tokens that looked at it: A is transposed":
            "dropped.swapaxes(-1, -2) @ dy -> (dropped @ dy if dropped.shape[2] == "
            "dropped.shape[3] else dropped.swapaxes(-1, -2) @ dy)",
        "in dV, the values met the probabilities after dropout": "_ if mask is None else _1 -> _",
        "in dA, dropout's mask is missing": "dropout_backward(_, _1) -> _",
        "in dK the factor 1/sqrt(D) is missing": "_ @ q / math.sqrt(D) -> _ @ q",
        "in dQ the factor 1/sqrt(D) is missing":
            "ds @ keys / math.sqrt(D) -> ds @ keys",
        "a head of keys or values collects from all heads of queries that it serves: add them up":
            "sum_heads(_, G) -> _[:, ::H // G]",
        "in dQ and dK the factor 1/sqrt(D) is missing": "_ / math.sqrt(D) -> _",
        "in dK, dS is transposed: a key collects from the queries that looked at it":
            "ds.swapaxes(-1, -2) @ q -> (ds @ q if ds.shape[2] == ds.shape[3] else "
            "ds.swapaxes(-1, -2) @ q)",
        "probabilities that are computed anew need the causal mask":
            "q, k, v, probabilities, mask, has_bias = cache -> q, k, v, _, mask, has_bias = cache\n"
            "probabilities, _ = softmax(q @ k.repeat(q.shape[1] // k.shape[1], axis=1)"
            ".swapaxes(-1, -2) / math.sqrt(q.shape[-1]))"},
    "lstm": {
        "the cell goes through tanh on its way to h": "np.tanh(c[:, t + 1]) -> c[:, t + 1]",
        "the cell keeps f times what it was": "f[:, t] * c[:, t] + _ -> c[:, t] + _",
        "the columns are i, f, g, o": "i, f, g, o = in_four(a) -> i, f, o, g = in_four(a)",
        "the h of the token before is missing in a": "a[:, t] += h[:, t] @ w_hh -> pass"},
    "lstm_backward": {
        "what comes back from the next token through h is missing": "da[:, t] @ w_hh.T -> 0.0",
        "what comes back from the next token through c is missing": "dc * f[:, t] -> 0.0",
        "the forget gate met the cell before the token": "dc * c[:, t] -> dc * c[:, t + 1]",
        "the candidate g is a tanh: its derivative is 1 - g^2":
            "_ * (1.0 - g[:, t] * g[:, t]) -> _ * (g[:, t] * (1.0 - g[:, t]))"},
    "last_tokens": {"those are the first n tokens": "x[:, -n:] -> x[:, :n]"},
    "last_tokens_backward": {
        "the gradient belongs to the last tokens": "dx[:, -n:] = dy -> dx[:, :n] = dy"},
    "log_sum_exp": {
        "the exponential overflows: take the largest x of each row out first":
            "x.max(axis=-1, keepdims=True) -> 0.0",
        "the largest x is to be added again": "top + np.log(_) -> np.log(_)",
        "the last axis stays, with one entry": "top + np.log(_) -> (top + np.log(_))[..., 0]"},
    "log_sum_exp_backward": {
        "the factor dy is missing": "dy / _ -> 1.0 / _",
        "the sum over the row is missing": "dy / e.sum(axis=-1, keepdims=True) -> dy"},
    "cross_entropy": {
        "a sum for a mean": "(lse - chosen).mean() -> (lse - chosen).sum()",
        "the sign: a likely target costs little": "(lse - chosen).mean() -> (chosen - lse).mean()",
        "the log-sum-exp is missing": "(lse - chosen).mean() -> -chosen.mean()",
        "the mean is over the targets, not over the scores": "_.mean() -> _.sum() / logits.size",
        "the logarithm of a probability that has become 0 is infinite: take the log-sum-exp minus "
        "the target's score": [
            f"(lse - chosen).mean() -> -np.log(np.take_along_axis({p}, targets[..., None], -1)"
            ").mean()" for p in ("softmax(logits)[0]",
                                 "(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))")]},
    "cross_entropy_backward": {
        "each of the N targets has a share of 1/N in the mean": "dy / _ -> dy",
        "the mean is over the targets, not over the scores": "dy / _ -> dy / dlogits.size",
        "the mean is over all targets, not over one sequence": "dy / _ -> dy / len(cache.targets)",
        "softmax minus one-hot, not the other way round": "dy / _ -> -dy / _",
        "the factor dy is missing": "dlogits *= dy / _ -> dlogits /= _",
        "softmax minus one-hot: the one-hot is missing": "dlogits -= one_hot -> pass",
        "softmax minus one-hot: 1 is subtracted at the target, and the rest of p stays there":
            "dlogits -= one_hot -> dlogits[one_hot] = 1.0",
        "the exponentials of a row are to be divided by their sum": [
            f"log_sum_exp_backward(dlse, cache.log_sum_exp) -> {e}" for e in (
                "cache.log_sum_exp.e.copy()", "cache.log_sum_exp.e / cache.log_sum_exp.e.sum()")],
        "that is the gradient of the probabilities; the scores stand before the softmax":
            "dlogits -= one_hot -> dlogits = np.where(one_hot, -1.0 / dlogits, 0.0)"},
}
