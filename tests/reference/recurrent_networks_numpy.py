"""LSTM and QRNN as plain loops in NumPy float64, token by token, row by row."""

import numpy as np
import txl_numpy
from paper_numpy import sigmoid


class Reader:
    """Reads documents with an `LSTM` or a `QRNN`.

    Args:
        params: nested dictionary of float64 arrays.
        config: of words in bins, by the names of Transformer-XL's released code; None: one table.
    """

    def __init__(self, params, config=None):
        self.params, self.config = params, config
        self.layers = [params["layers"][i] for i in range(len(params["layers"]))]
        if config:
            self.words = txl_numpy.of_words(params["embedding"], config)

    def begin(self):
        return [self.begin_layer(layer) for layer in self.layers]

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


class LSTM(Reader):
    """Gers et al. 2000; the state is h and c."""

    def begin_layer(self, layer):
        return np.zeros((2, len(layer["bias_Z"]) // 4))

    def token(self, layer, x_I, state):
        h_U, c_U = state
        a_Z = layer["inputs_IZ"].T @ x_I + layer["hidden_UZ"].T @ h_U + layer["bias_Z"]
        i, f, o, g = np.split(a_Z, 4)
        c_U = sigmoid(f) * c_U + sigmoid(i) * np.tanh(g)
        h_U = sigmoid(o) * np.tanh(c_U)
        return h_U, (h_U, c_U)


class QRNN(Reader):
    """Bradbury et al. 2017, equations 1 (k = 2) and 4 (fo-pooling); the state is x and c."""

    def begin_layer(self, layer):
        return np.zeros(len(layer["inputs_IZ"])), np.zeros(len(layer["bias_Z"]) // 3)

    def token(self, layer, x_I, state):
        last_I, c_U = state
        a_Z = layer["earlier_IZ"].T @ last_I + layer["inputs_IZ"].T @ x_I + layer["bias_Z"]
        z, f, o = np.split(a_Z, 3)
        c_U = sigmoid(f) * c_U + (1 - sigmoid(f)) * np.tanh(z)
        return sigmoid(o) * c_U, (x_I, c_U)
