"""RandAugment (Cubuk et al. 2019) inside the step: operations that are drawn for each image.

The 16 operations and their magnitudes are those with which "Better plain ViT baselines for
ImageNet-1k" (Beyer, Zhai and Kolesnikov 2022) was trained; its largest magnitude is 10.
Pixels are uint8 before and after each operation. Unlike in the paper, shifts and the cut-out square
are fractions of the image's sides (100 and 80 pixels of 224), and contrast is stretched about the
mean of the grey image, as in PIL.
"""

import jax
import jax.numpy as jnp
import numpy as np

# The grey level of pixels from outside the image, and of the square that is cut out.
_FILL = 128
_GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
_PIXELS = ("autocontrast", "equalize", "invert", "posterize", "solarize", "solarize_add")
_PIXELS += ("color", "contrast", "brightness", "sharpness", "cutout")
OPERATIONS = (*_GEOMETRY, *_PIXELS)


def rand_augment(
    keys_B: jax.Array, images_BxHxWxC: jax.Array, num_operations: int, magnitude: float
) -> jax.Array:
    """Apply operations to each image, one after the other, drawn by its own key.

    Every image goes through the arithmetic of all operations, and one result is kept: devices have
    no branches within a batch.
    """

    def one(key, image_HxWx3):
        for number in range(num_operations):
            keys = jax.random.split(jax.random.fold_in(key, number), 3)
            # int32 and float32 by name: under fp64 the default would draw other bits.
            which = jax.random.randint(keys[0], (), 0, len(OPERATIONS), jnp.int32)
            sign = jnp.where(jax.random.bits(keys[1], (), jnp.uint8) < 128, 1.0, -1.0)
            centre_2 = jax.random.uniform(keys[2], (2,), jnp.float32)
            sign = sign.astype(jnp.float32)
            image_HxWx3 = operate(image_HxWx3, which, sign, centre_2, magnitude / 10)
        return image_HxWx3

    return jax.vmap(one)(keys_B, images_BxHxWxC)


def operate(
    image_HxWx3: jax.Array, which: jax.Array, sign: jax.Array, centre_2: jax.Array, level: float
) -> jax.Array:
    """Apply the operation of number `which` in `OPERATIONS` to a uint8 image.

    Args:
      sign: 1 or -1, the direction of a rotation, shear or shift.
      centre_2: the centre of the cut-out square, as fractions of height and width.
      level: the magnitude, as a fraction of the largest.
    """
    moved_HxWx3 = _move(image_HxWx3, which, sign * level).astype(jnp.float32)
    changed = _change_pixels(moved_HxWx3, centre_2, level)
    kept = jnp.maximum(which - len(_GEOMETRY) + 1, 0)
    changed = _floor(jax.lax.select_n(kept, moved_HxWx3, *changed))
    return jnp.clip(changed, 0, 255).astype(jnp.uint8)


def _floor(values: jax.Array) -> jax.Array:
    """Return the whole numbers below.

    Many values are whole but for rounding, which differs with what a compiler makes of the batch;
    a little is added, so that an image becomes the same on any number of devices.
    """
    return jnp.floor(values + 1 / 4096)


def _move(image_HxWxC: jax.Array, which: jax.Array, level: jax.Array) -> jax.Array:
    """Rotate, shear or shift an image, or leave it as it is; the nearest pixels are taken."""
    height, width = image_HxWxC.shape[:2]
    x_middle, y_middle = (width - 1) / 2, (height - 1) / 2
    cos, sin = jnp.cos(level * np.pi / 6), jnp.sin(level * np.pi / 6)
    # A pixel (x, y) comes from (a x + b y + c, d x + e y + f).
    rotate = (cos, -sin, x_middle - cos * x_middle + sin * y_middle)
    rotate += (sin, cos, y_middle - sin * x_middle - cos * y_middle)
    moves = (
        rotate,
        (1, 0.3 * level, 0, 0, 1, 0),
        (1, 0, 0, 0.3 * level, 1, 0),
        (1, 0, level * width * 100 / 224, 0, 1, 0),
        (1, 0, 0, 0, 1, level * height * 100 / 224),
        (1, 0, 0, 0, 1, 0),
    )
    table = jnp.stack([jnp.stack([jnp.float32(value) for value in move]) for move in moves])
    a, b, c, d, e, f = table[jnp.minimum(which, len(_GEOMETRY))]
    y, x = jnp.arange(height, dtype=jnp.float32)[:, None], jnp.arange(width, dtype=jnp.float32)
    column_HxW = _floor(a * x + b * y + c + 0.5).astype(jnp.int32)
    row_HxW = _floor(d * x + e * y + f + 0.5).astype(jnp.int32)
    inside_HxW = (column_HxW >= 0) & (column_HxW < width) & (row_HxW >= 0) & (row_HxW < height)
    taken = image_HxWxC[jnp.clip(row_HxW, 0, height - 1), jnp.clip(column_HxW, 0, width - 1)]
    return jnp.where(inside_HxW[..., None], taken, jnp.uint8(_FILL))


def _change_pixels(image_HxWx3: jax.Array, centre_2: jax.Array, level: float) -> list[jax.Array]:
    """Return what each operation of `_PIXELS` makes of an image of whole numbers in float32."""
    height, width = image_HxWx3.shape[:2]
    factor = 0.1 + 1.8 * level
    low_3, high_3 = jnp.min(image_HxWx3, (0, 1)), jnp.max(image_HxWx3, (0, 1))
    stretch_3 = 255 / jnp.maximum(high_3 - low_3, 1)
    weights_3 = jnp.array([0.299, 0.587, 0.114], jnp.float32)
    grey_HxWx1 = _floor(jnp.sum(image_HxWx3 * weights_3, -1, keepdims=True) + 0.5)
    step = 2.0 ** (8 - int(4 * level))
    y, x = jnp.arange(height)[:, None], jnp.arange(width)
    centre_y, centre_x = jnp.floor(centre_2 * jnp.array([height, width], jnp.float32))
    half_y, half_x = round(height * level * 40 / 224), round(width * level * 40 / 224)
    cut_HxW = (y >= centre_y - half_y) & (y < centre_y + half_y)
    cut_HxW &= (x >= centre_x - half_x) & (x < centre_x + half_x)
    made = {
        "autocontrast": jnp.where(high_3 > low_3, (image_HxWx3 - low_3) * stretch_3, image_HxWx3),
        "equalize": _equalize(image_HxWx3),
        "invert": 255 - image_HxWx3,
        "posterize": jnp.floor(image_HxWx3 / step) * step,
        "solarize": jnp.where(image_HxWx3 < int(256 * level), image_HxWx3, 255 - image_HxWx3),
        "solarize_add": jnp.where(image_HxWx3 < 128, image_HxWx3 + int(110 * level), image_HxWx3),
        "color": _blend(grey_HxWx1, image_HxWx3, factor),
        "contrast": _blend(_floor(jnp.mean(grey_HxWx1) + 0.5), image_HxWx3, factor),
        "brightness": _blend(0.0, image_HxWx3, factor),
        "sharpness": _blend(_smooth(image_HxWx3), image_HxWx3, factor),
        "cutout": jnp.where(cut_HxW[..., None], float(_FILL), image_HxWx3),
    }
    return [made[name] for name in _PIXELS]


def _blend(plain: jax.Array | float, image_HxWxC: jax.Array, factor: float) -> jax.Array:
    return plain + factor * (image_HxWxC - plain)


def _smooth(image_HxWxC: jax.Array) -> jax.Array:
    """Return each pixel's mean with its 8 neighbours, itself counted 5 times; edges stay."""
    height, width = image_HxWxC.shape[:2]
    if min(height, width) < 3:
        return image_HxWxC
    inner = image_HxWxC[1:-1, 1:-1]
    around = sum(
        image_HxWxC[top : top + height - 2, left : left + width - 2]
        for top in range(3)
        for left in range(3)
    )
    return image_HxWxC.at[1:-1, 1:-1].set(_floor((around + 4 * inner) / 13))


def _equalize(image_HxWxC: jax.Array) -> jax.Array:
    """Spread each channel's grey levels so that all are about as frequent, as PIL does."""
    levels_256 = jnp.arange(256, dtype=jnp.float32)
    channels_CxP = image_HxWxC.reshape(-1, image_HxWxC.shape[-1]).T

    def one(pixels_P):
        # Compared and counted in one pass; a histogram would scatter.
        up_to_256 = jnp.sum(pixels_P[:, None] <= levels_256, axis=0, dtype=jnp.int32)
        below_256 = jnp.concatenate([jnp.zeros(1, jnp.int32), up_to_256[:-1]])
        highest = jnp.max(pixels_P).astype(jnp.int32)
        step = below_256[highest] // 255
        table = jnp.clip((below_256 + step // 2) // jnp.maximum(step, 1), 0, 255)
        return jnp.where(step > 0, table[pixels_P.astype(jnp.int32)], pixels_P)

    return jax.vmap(one)(channels_CxP).T.reshape(image_HxWxC.shape)
