"""What --mode=describe says of a network, layer by layer."""

import flax.linen as nn

from jaxbench.modes.describe import list_layers
from tests.conftest import MICRO, program_of
from tests.micro import config_for


class Block(nn.Module):
    """A mixer's block: its Dense layers end in the same names as the network's own."""

    @nn.compact
    def __call__(self, x_BxPxC):
        mixed = nn.Dense(x_BxPxC.shape[1])(x_BxPxC.swapaxes(1, 2)).swapaxes(1, 2)
        # A product without parameters, as in attention.
        return nn.Dense(x_BxPxC.shape[2])(mixed) + (mixed @ mixed.swapaxes(1, 2)) @ mixed


class Mixer(nn.Module):
    @nn.compact
    def __call__(self, images, train=False, keys_B=None):
        x = images.reshape(len(images), 16, -1)
        x = nn.remat(Block)()(Block()(x))
        return Readout().read(x.mean(axis=1))


class Readout(nn.Module):
    """Called by a method of its own."""

    @nn.compact
    def read(self, x_BxC):
        return nn.Dense(10)(x_BxC) * self.param("scale", nn.initializers.ones, (10,))


def test_products_belong_to_the_module_that_calls_them():
    network = program_of(MICRO, model=config_for(lambda **_: Mixer())).network
    rows = {row["layer"]: row for row in list_layers(network)}
    macs = {name: row["forward_macs_per_image"] for name, row in rows.items()}
    assert macs["Readout_0/Dense_0"] == 4 * 10
    assert macs["Block_0/Dense_0"] == 4 * 16 * 16
    assert macs["Block_0/Dense_1"] == 16 * 4 * 4
    assert macs["Block_0"] == 2 * 16 * 16 * 4
    assert sum(macs.values()) == network.analysis.forward_macs
    assert len(macs) == 8
    assert sum(row["parameters"] for row in rows.values()) == network.analysis.num_parameters


def test_the_groups_of_parameters_have_their_rates_and_decays():
    analysis = program_of("cifar10_speedrun94:tiny").network.analysis
    groups = analysis.parameter_groups()
    assert sum(row["parameters"] for row in groups) == analysis.num_parameters
    by_name = {name: row for row in groups for name in row["names"]}
    of = [by_name[name] for name in ("conv1_1/kernel", "head/kernel", "norm1_1/bias")]
    assert [(row["group"], row["learning_rate"], row["weight_decay"]) for row in of] == [
        ("kernel", 0.24, 0.0),
        ("head", 40, 0.004),
        ("bias", 2, 0.004),
    ]
    assert (by_name["whitening/kernel"]["epochs"], by_name["whitening/bias"]["epochs"]) == (0, 3)
