"""LSTM and QRNN as plain loops in NumPy float64, token by token, row by row."""

import numpy as np
import txl_numpy


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_token(layer, x_I, state):
    """One token of one row: Gers et al. 2000, with c and h of `state`."""
    h_U, c_U = state
    a_Z = layer["inputs_IZ"].T @ x_I + layer["hidden_UZ"].T @ h_U + layer["bias_Z"]
    U = len(c_U)
    i, f, o = (sigmoid(a_Z[n * U : (n + 1) * U]) for n in range(3))
    c_U = f * c_U + i * np.tanh(a_Z[3 * U :])
    h_U = o * np.tanh(c_U)
    return h_U, (h_U, c_U)


def qrnn_token(layer, x_I, state):
    """One token of one row: Bradbury et al. 2017, equations 1 (k = 2) and 4 (fo-pooling)."""
    last_I, c_U = state
    a_Z = layer["earlier_IZ"].T @ last_I + layer["inputs_IZ"].T @ x_I + layer["bias_Z"]
    U = len(c_U)
    z, f, o = np.tanh(a_Z[:U]), sigmoid(a_Z[U : 2 * U]), sigmoid(a_Z[2 * U :])
    c_U = f * c_U + (1 - f) * z
    return o * c_U, (x_I, c_U)


def lstm_state(layer):
    U = len(layer["bias_Z"]) // 4
    return np.zeros(U), np.zeros(U)


def qrnn_state(layer):
    return np.zeros(len(layer["inputs_IZ"])), np.zeros(len(layer["bias_Z"]) // 3)


class Reader:
    """Reads documents with an LSTM or a QRNN.

    Args:
        params: nested dictionary of float64 arrays.
        token, state: of a layer, `lstm_token` and `lstm_state` for example.
        config: of words in bins, by the names of Transformer-XL's released code; None: one table.
    """

    def __init__(self, params, token, state, config=None):
        self.params, self.token, self.state, self.config = params, token, state, config
        self.layers = [params["layers"][i] for i in range(len(params["layers"]))]
        if config:
            self.words = txl_numpy.of_words(params["embedding"], config)

    def begin(self):
        return [self.state(layer) for layer in self.layers]

    def embed(self, t):
        if self.config:
            return txl_numpy.embed(t, self.words, self.config)
        return self.params["begin_D"] if t < 0 else self.params["embedding_VD"][t]

    def score(self, x):
        if self.config:
            return txl_numpy.log_probabilities(x, self.words, self.config)[0]
        return self.params["embedding_VD"] @ x + self.params["bias_V"]

    def read(self, tokens_T, states):
        """Logits or log-probabilities (T, V) of a segment, and each layer's state after it."""
        states, logits = list(states), []
        for t in tokens_T:
            x = self.embed(t)
            for i, layer in enumerate(self.layers):
                x, states[i] = self.token(layer, x, states[i])
            logits.append(self.score(x))
        return np.array(logits), states
