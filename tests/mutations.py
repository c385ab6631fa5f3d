"""Does the suite notice? Makes one plausible mistake in the code at a time and runs the tests.

    python tests/mutations.py [--only=NAME,...] [--list] [--json=FILE] [--jobs=1] [--integration]
        [--asked_only] [--checked] [--timeout_s=1200] [--deselect=TEST] [--checkout=FOLDER]

For each mutation the checkout is copied into a temporary folder, one text in it is replaced, and
pytest runs there: first the test files of the fast half that are likeliest to fail, then, if none
does, the whole fast half, and with --integration the integration half. A mutation is caught when a
test fails. All these tests must pass without a mutation; that is tried first (not with --checked).

The lines say for each mutation which test failed first, and the seconds; a table counts by area.
Exit code 1 if the fast half caught fewer than 90 %, 2 if a mutation's text is no longer found
exactly once: the code has moved, and the list must follow it.

It stands with the tests because it measures them and names their files; no test runs all of it.
"""

import ast
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The share of mutations that the fast half must catch.
GOAL = 0.9
# Left out: in a copy that is mutated they miss the mutation's text, and git.
_OWN_TESTS = ("tests/test_mutations.py", "tests/integration/test_mutations.py")
_INTEGRATION = "integration and not slow"


class Mutation(NamedTuple):
    """A mistake that somebody might make.

    Attributes:
      area: the heading that it stands under.
      name: of it.
      file: under jaxbench/.
      old: the text that it replaces, exactly once in the file.
      new: what stands there instead.
      ask: the test files that are likeliest to notice, `step` for test_step.py, best first.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    ask: str


# NAME FILE: ASK, then the old text behind a minus and the new one behind a plus.
_LIST = r"""
## The training step.

gradients_not_reduced parallel/fsdp.py: train_step
- iter(jax.lax.pmean([
+ iter(([

gradients_summed parallel/fsdp.py: train_step
- iter(jax.lax.pmean([
+ iter(jax.lax.psum([

split_gradients_summed parallel/fsdp.py: fsdp
- leaf.value / num_devices if
+ leaf.value if

parameter_gathered_along_its_first_axis parallel/fsdp.py: fsdp
- axis=self.axis, tiled=True
+ axis=0, tiled=True

local_statistics_drift_apart train.py: train_step
- batch_stats = jax.lax.pmean(batch_stats, AXIS)
+ batch_stats = jax.tree.map(jnp.asarray, batch_stats)

metrics_of_one_device train.py: train_step throughput train
- sums_M = jax.lax.psum(sums_M, AXIS)
+ sums_M = sums_M + 0

synchronised_statistics_are_local models/batch_norm.py: layers hlo
- sums_2xC = jax.lax.pmean(sums_2xC, axis_name)
+ sums_2xC = sums_2xC + 0

running_average_keeps_a_tenth models/batch_norm.py: layers
- self.momentum * average.value + (1 - self.momentum) * now_C
+ (1 - self.momentum) * average.value + self.momentum * now_C

dropout_with_the_crops_key data/augment.py: augment
- return _fold_in(keys_B, _DROPOUT)
+ return keys_B

dropout_layers_alike models/layers.py: train_step
- jax.random.bernoulli(jax.random.fold_in(key, layer), kept, x.shape)
+ jax.random.bernoulli(key, kept, x.shape)

label_smoothing_not_by_classes tasks.py: train_step tasks
- even_B = -jnp.mean(jax.nn.log_softmax(outputs_Bx), axis=-1)
+ even_B = -jnp.sum(jax.nn.log_softmax(outputs_Bx), axis=-1)

evaluation_smooths_labels train.py: resident train_step train
- task.losses(outputs_Bx, examples.labels_Bx, 0.0)
+ task.losses(outputs_Bx, examples.labels_Bx, config.label_smoothing)

accumulated_gradients_summed train.py: train_step
- return jax.tree.map(lambda g: g / num_parts, grads), batch_stats, sums_M
+ return grads, batch_stats, sums_M

metrics_of_the_last_part train.py: train_step
- sums_M + part_sums_M
+ part_sums_M

remat_does_nothing train.py: memory
- if config.remat == "save_dots" or gathers:
+ if config.remat == "norm" or gathers:

masks_stay_where_they_were data/augment.py: stream
- labels_Bx=crop_and_flip(windows, examples.labels_Bx, data)
+ labels_Bx=examples.labels_Bx

## The optimizer and its schedules.

warmup_begins_at_zero training/optimizers.py: optimizers
- optax.linear_schedule(peak / warmup_steps, peak, max(1, warmup_steps - 1))
+ optax.linear_schedule(0.0, peak, max(1, warmup_steps))

warmup_moves_the_boundaries training/optimizers.py: optimizers
- if optimizer.schedule == "step":  # decays
+ if False:  # decays

decay_factor_squared training/optimizers.py: optimizers
- optimizer.decay_factor**times
+ optimizer.decay_factor ** (2 * times)

rate_ignores_the_batch training/optimizers.py: optimizers
- peak = optimizer.learning_rate * config.batch_size / optimizer.base_batch_size
+ peak = optimizer.learning_rate

nesterov_is_plain_momentum training/optimizers.py: optimizers
- is_nesterov = optimizer.name == "nesterov"
+ is_nesterov = False

head_has_the_kernels_rate training/parameter_groups.py: parameter_groups optimizers
- return "head" if name in heads else "kernel"
+ return "kernel" if name in heads else "kernel"

embeddings_are_orthogonalised training/parameter_groups.py: parameter_groups optimizers
- kernels = used.multiplied - used.looked_up
+ kernels = used.multiplied

bias_rate_ignores_the_batch training/optimizers.py: optimizers speed_net
- optimizer.bias_learning_rate * batches or rate
+ optimizer.bias_learning_rate or rate

weight_decay_on_everything training/optimizers.py: optimizers
- mask = _are_matrices if optimizer.weight_decay_on == "kernels" else None
+ mask = None

decay_as_a_share_of_the_rate training/optimizers.py: optimizers
- decay = decay / rate if rate else 0.0
+ decay = decay if rate else 0.0

muon_norm_by_inputs training/optimizers.py: optimizers
- full = jnp.sqrt(kernel_KxKxIxO.shape[-1])
+ full = jnp.sqrt(kernel_KxKxIxO.shape[-2])

norms_are_kept_in_every_step training/optimizers.py: optimizers
- jnp.where(is_due, factor - 1, 0)
+ (factor - 1)

unsure_images_are_the_sure_ones training/prediction.py: speed_net
- jax.lax.top_k(-confidence_B,
+ jax.lax.top_k(confidence_B,

a_rule_is_left_out training/optimizers.py: optimizers
- case "adadelta":
+ case "ada_delta":

recorded_rate_is_the_next_steps train.py: train_step loss_scale
- schedule(num_updates(state.opt_state))
+ schedule(num_updates(state.opt_state) + 1)

## The loss scale.

scale_doubles_a_step_late training/loss_scale.py: loss_scale
- grown = good_steps >= GROWTH_STEPS
+ grown = good_steps > GROWTH_STEPS

scale_is_quartered training/loss_scale.py: loss_scale
- jnp.maximum(self.scale / 2, LOWEST_SCALE)
+ jnp.maximum(self.scale / 4, LOWEST_SCALE)

overflow_keeps_the_good_steps training/loss_scale.py: loss_scale
- good_steps=jnp.where(finite & ~grown, good_steps, 0)
+ good_steps=jnp.where(~grown, good_steps, 0)

overflowing_step_is_taken train.py: loss_scale
- selected = optax.tree_utils.tree_where(finite, new_state, state)
+ selected = new_state

gradients_stay_scaled train.py: loss_scale
- grads = state.loss_scale.unscaled(grads)
+ grads = jax.tree.map(jnp.asarray, grads)

## The order of examples.

every_epoch_in_one_order data/sampler.py: resident
- np.random.Philox(key=[seed, epoch])
+ np.random.Philox(key=[seed, 0])

every_seed_in_one_order data/sampler.py: resident
- np.random.Philox(key=[seed, epoch])
+ np.random.Philox(key=[0, epoch])

evaluation_drops_its_tail data/sampler.py: resident
- steps = -(-num_examples // batch_size)
+ steps = max(1, num_examples // batch_size)

every_process_reads_the_first_share batch_layout.py: resident
- first = self.process_index * self.devices_per_process
+ first = 0

layout_is_computed_again modes/runner.py: batch_layout
- create_feed(config, dataset, mesh, layout, precision.param_dtype)
+ create_feed(config, dataset, *create_training_mesh(config), precision.param_dtype)

a_source_ignores_its_path data_config.py: sources
- "npz", "folder", "text"]
+ "npz", "folder", "text", "digits"]

## Augmentation and normalisation.

crops_never_touch_the_far_edge data/augment.py: augment
- 0, 2 * padding + 1, jnp.int32
+ 0, max(1, 2 * padding), jnp.int32

a_quarter_is_flipped data/augment.py: augment
- jnp.uint8) < 128
+ jnp.uint8) < 64

brightness_and_contrast_share_a_draw data/augment.py: augment
- _CROP, _FLIP, _BRIGHTNESS, _CONTRAST, _DROPOUT, _MIXUP, _RAND_AUGMENT = range(7)
+ _CROP, _FLIP, _BRIGHTNESS, _CONTRAST, _DROPOUT, _MIXUP, _RAND_AUGMENT = 0, 1, 2, 2, 4, 5, 6

every_epoch_is_augmented_alike data/augment.py: augment
- epoch_key = jax.random.fold_in(jax.random.key(seed), epoch)
+ epoch_key = jax.random.key(seed)

variance_for_deviation data/dataset.py: resident augment
- float(np.sqrt(fraction @ (values - mean) ** 2))
+ float(fraction @ (values - mean) ** 2)

a_folder_has_its_own_statistics data/sources/folder.py: resize
- statistics="ImageNet's",
+ statistics="the training split's",

the_centre_is_resized_less data/images/decode.py: resize
- _RESIZE_PER_CROP = 256 / 224
+ _RESIZE_PER_CROP = 1

an_image_of_the_right_size_is_cut data/images/decode.py: resize
- if pixels_HxWx3.shape[:2] == (height, width):
+ if pixels_HxWx3.shape[:2] == (0, 0):

a_data_folder_names_any_class data/sources/tfds.py: hostile_files
- if names_class and not value.startswith(_FEATURE_CLASSES):
+ if names_class and not value:

a_pickle_calls_anything data/sources/cifar10.py: hostile_files
- if hashlib.md5(content, usedforsecurity=False).hexdigest() != _PICKLES_MD5[name]:
+ if not content:

a_download_is_believed data/sources/download.py: download
- return content if hashlib.sha256(content).hexdigest() == file.sha256 else None
+ return content

what_is_left_over_is_forgotten data/sources/download.py: download
- headers["Range"] = f"bytes={done}-"
+ headers["Range"] = "bytes=0-"

copies_outlive_their_originals data/sources/cache.py: encoded
- digest.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
+ digest.update(f"\0{stat.st_size}\0".encode())

an_archive_may_fill_the_memory data/sources/npz.py: hostile_files
- unpacked_bytes = sum(info.file_size for info in archive.zip.infolist())
+ unpacked_bytes = sum(info.compress_size for info in archive.zip.infolist())

a_pngs_checksums_are_believed data/images/decode.py: decode
- copy.verify()  # a PNG's checksums, which decoding leaves out
+ copy.close()

records_go_through_links files.py: files
- flags |= os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if own else 0)
+ flags |= os.O_NONBLOCK | os.O_CLOEXEC

a_headers_claim_is_believed data/images/decode.py: resize
- if height * width > MAX_PIXELS:
+ if height * width < 0:

mean_is_not_subtracted data/augment.py: augment
- ((images_BxHxWxC.astype(mean_C.dtype) - mean_C) / std_C)
+ (images_BxHxWxC.astype(mean_C.dtype) / std_C)

## Ctrl-C.

ctrl_c_before_the_thread_runs data/feeds/stream.py: stream
- with defer_signals():
+ if True:

## What an evaluation counts.

padding_is_counted data/feeds/feed.py: resident
- mask_B = indices_B != PADDING
+ mask_B = indices_B >= PADDING

loss_over_masked_rows tasks.py: resident train_step
- jnp.sum(jnp.where(mask_B, value_B, 0))
+ jnp.sum(value_B)

top5_is_top1 tasks.py: train_step
- top5=better_B < 5
+ top5=better_B < 1

nan_is_among_the_best tasks.py: train_step tasks
- ~(logits_BxK <= label_Bx1)
+ (logits_BxK > label_Bx1)

ties_are_hits tasks.py: tasks
- & earlier_BxK
+ & False

iou_counts_both_twice tasks.py: tasks
- "iou": overlap(both, either - both)
+ "iou": overlap(both, either)

## The training loop's records.

last_epoch_is_not_evaluated training/run.py: training_run train
- (epoch + 1) % self.eval_every_epochs == 0 or epoch + 1 == self.num_epochs
+ (epoch + 1) % self.eval_every_epochs == 0

a_part_of_an_epoch_is_complete train.py: train profiler
- complete=timed_steps == run.plan.steps_per_epoch
+ complete=trained.steps == len(run.plan.steps(trained.epoch))

first_epoch_is_in_the_median modes/train.py: training_run train
- later = [epoch for epoch in complete if epoch.epoch > 1]
+ later = [epoch for epoch in complete if epoch.epoch > 0]

## Checkpoints and resuming.

half_an_epoch_is_trained_again training/run.py: training_run resume
- EpochMetrics(**progress.epoch_metrics)
+ None

damaged_records_are_resumed checkpoints/resume.py: resume
- or digest(file, mark[0]) != mark:
+ or False:

epochs_after_the_checkpoint_count checkpoints/resume.py: resume
- lines.tell() < mark[0] and lines.readline(), False
+ lines.peek(1) and lines.readline(), b""

digests_are_of_the_size_alone checkpoints/checkpoint.py: resume
- .is_file() or digest(path / name) != written:
+ .is_file() or digest(path / name)[0] != written[0]:

records_are_not_set_back checkpoints/resume.py: resume
- os.truncate(path, marks[name][0])
+ pass

a_claim_is_not_looked_at_again records/run_dir.py: run_dir
- lock = lock_run(path)
+ return RunDir(path, document.to_json(), lock_run(path))

a_running_run_is_not_seen records/run_lock.py: run_dir resume report
- fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
+ fcntl.flock(descriptor, fcntl.LOCK_UN)

run_json_has_no_room_to_spare records/run_dir.py: run_dir
- blocks * _BLOCK_BYTES
+ len(text)

orbax_finds_out_that_the_disk_is_full checkpoints/checkpoint.py: resume
- disk.free < sum(
+ disk.free < 0 * sum(

ctrl_c_saves_nothing train.py: resume
- except (KeyboardInterrupt, Terminated):
+ except Terminated:

each_signal_is_an_end_of_its_own parallel/signals.py: signals
- if number == signal.SIGINT and _first
+ if _first

lost_work_counts_as_done_on_other_devices records/attempts.py: attempts
- if starts[position] >= min(
+ if starts[position] > min(

oldest_checkpoint_for_the_newest checkpoints/checkpoint.py: resume
- for name in reversed(list_checkpoints(folder)):
+ for name in list_checkpoints(folder):

worst_checkpoint_is_kept checkpoints/checkpoint.py: resume
- max(scored)[1]
+ min(scored)[1]

## Figures that cannot be true; statistics.

mfu_limit_in_percent records/validity.py: validity
- if mfu is not None and mfu > 1:
+ if mfu is not None and mfu > 100:

lost_images_are_no_matter records/validity.py: validity
- if not images - corrupt <= record.images <= images:
+ if not record.images <= images:

interval_too_narrow analysis/statistics.py: statistics
- margin = 0.98 * count
+ margin = 0.49 * count

windows_taken_for_independent analysis/statistics.py: statistics
- return max(1.0, len(samples) * (1 - r) / (1 + r))
+ return float(len(samples))

autocorrelation_is_biased analysis/statistics.py: statistics
- (count * plain + 1) / (count - 4)
+ plain

drift_the_wrong_way_round analysis/statistics.py: telemetry
- return second / first - 1
+ return first / second - 1

## Throughput windows.

forward_pass_is_not_waited_for modes/throughput.py: throughput
- jax.block_until_ready(self._metrics)
+ self._metrics.copy_to_host_async()

batches_prepared_before_are_counted modes/throughput.py: throughput
- self._fill = setup.config.data.prefetch_batches + 2 if setup.feed.name == "stream" else 0
+ self._fill = 0

warmup_epoch_is_counted analysis/steady_rate.py: training_run compare
- and one.epoch > 1
+ and one.epoch > 0

whole_run_for_the_steady_state modes/train.py: training_run
- images_per_s_whole_run=images / train_time_s if images else None,
+ images_per_s_whole_run=rate.value,

mfu_of_all_epochs reports/context.py: golden
- [epoch.mfu for epoch in epochs if
+ [epoch.mfu for epoch in run.of_kind(EpochRecord) if

columns_of_today_in_a_file_of_before records/writers/files.py: schema
- columns = next(csv.reader(file), [*columns_of(kind), *own])
+ columns = [*columns_of(kind), *own]

a_nullable_field_is_required records/schema.py: schema
- type_, default = f"{type_} | None", {"default": None}
+ type_ = f"{type_} | None"

any_windows_agree microbench/interleaved.py: microbench
- max(last) <= (1 + _AGREEMENT) * min(last)
+ max(last) <= (1 + _AGREEMENT) * max(last)

rates_averaged_arithmetically modes/windows.py: throughput
- statistics.harmonic_mean(rates_R)
+ statistics.fmean(rates_R)

compilation_is_not_recorded modes/input_benchmark.py: input_benchmark
- recorder.write(setup.compile("train_step", step, state, feed.train_data, batch))
+ setup.compile("train_step", step, state, feed.train_data, batch)

## Scaling, arithmetic, collectives.

efficiency_is_the_speedup analysis/scaling_model.py: scaling_model
- rate[0] / (num_devices * base[0])
+ rate[0] / base[0]

half_of_a_ring_all_reduce analysis/scaling_model.py: scaling_model
- return 2 * (num_devices - 1) / num_devices * size
+ return (num_devices - 1) / num_devices * size

gradient_of_the_first_layers_input_not_in_mfu training/network_analysis.py: models
- for op, macs in find_needed(by_images=True)
+ for op, macs in find_needed(by_images=False)

macs_of_one_pixel_less xla/jaxpr.py: models
- pixels = [output[axis] for axis in (spec.out_spec[0], *spec.out_spec[2:])]
+ pixels = [output[axis] for axis in spec.out_spec[2:]][1:]

zeros_of_a_transposed_convolution_counted xla/jaxpr.py: jaxpr
- if math.prod(equation.params["lhs_dilation"]) > 1:
+ if math.prod(equation.params["lhs_dilation"]) > 9:

parts_by_device data/sampler.py: train_step
- order_SxPxDxN.transpose(2, 0, 1, 3)
+ order_SxN.reshape(steps, num_devices, num_parts, -1).transpose(1, 0, 2, 3)

batch_norm_not_checked training/program.py: network_analysis
- if analysis.batch_norm not in (None, self.config.batch_norm):
+ if analysis.batch_norm is self.config:

mfu_of_one_device hardware/peaks.py: peaks
- flops_per_s = images_per_s * flops_per_image / mesh.num_devices
+ flops_per_s = images_per_s * flops_per_image

asynchronous_collectives_left_out xla/hlo.py: hlo
- operation = instruction.opcode.removesuffix("-start")
+ operation = instruction.opcode

## Telemetry.

energy_of_the_last_board hardware/telemetry/summary.py: telemetry
- energy_j = sum(energy_j for energy_j, _, _ in meters.values())
+ energy_j = max(energy_j for energy_j, _, _ in meters.values())

energy_between_windows_too hardware/telemetry/summary.py: telemetry
- float((at_edges_j[:, 1] - at_edges_j[:, 0]).sum())
+ float(at_edges_j[-1, 1] - at_edges_j[0, 0])

power_in_milliwatts hardware/telemetry/nvml.py: telemetry
- nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
+ nvml.nvmlDeviceGetPowerUsage(handle)

## Money.

price_of_a_second analysis/pricing.py: cost
- return time_s / S_PER_HOUR * usd_per_hour
+ return time_s * usd_per_hour

kilowatt_hours_of_kilojoules analysis/pricing.py: cost
- S_PER_HOUR, J_PER_KWH = 3600.0, 3.6e6
+ S_PER_HOUR, J_PER_KWH = 3600.0, 3.6e3

target_must_be_exceeded reports/runs.py: cost
- in evaluated if value >= target
+ in evaluated if value > target

## Report, comparison, sweep.

largest_batch_of_a_device_by_all_devices sweeps/max_batch.py: sweep
- BatchLayout.create(config, best.num_devices).batch_per_device
+ largest // best.num_devices

report_shows_the_mean_rate analysis/statistics.py: golden
- median, low, high = median_interval(samples)
+ median, low, high = (sum(samples) / len(samples), *median_interval(samples)[1:])

report_draws_invalid_runs reports/context.py: golden
- return self.run.status == "done"
+ return self.run.status != "failed"

interval_of_two_windows analysis/statistics.py: golden
- enough = n >= FEWEST_FOR_INTERVAL
+ enough = n >= 2

verdict_on_single_runs analysis/comparison.py: compare
- if count < 2]:
+ if count < 1]:

verdict_on_runs_one_after_another analysis/comparison.py: compare
- is_sound = not same_host or
+ is_sound = True or not same_host or

ratios_judged_one_by_one analysis/comparison.py: compare
- quantile = 1 - (1 - _LEVEL) / 2 / num_verdicts
+ quantile = 1 - (1 - _LEVEL) / 2

repeats_taken_for_one_population analysis/comparison.py: compare
- float(stdtrit(freedom, quantile)) * math.sqrt(between),
+ 1.96 * math.sqrt(between),

verdict_on_a_busy_host reports/sides.py: compare
- if True in busy:
+ if False:

other_images_are_the_same_work reports/work.py: compare
- or (room == "data" and field not in _READING)
+ or False

doubled_records_are_no_matter records/reader.py: compare
- if summaries > 1:
+ if summaries > 9:

a_cpu_has_no_limit hardware/peak_table.py: peaks
- return cores * _CPU_HZ * max(rates or _FLOPS_PER_CYCLE.values())
+ return cores * _CPU_HZ * 1e9

arithmetic_beyond_the_limit_passes records/validity.py: validity
- if flops_per_s is None or flops_per_s <= limit:
+ if flops_per_s is None or flops_per_s <= 1e6 * limit:

a_slow_clock_is_a_date_that_was_set records/validity.py: validity
- if list(disagreeing) == ["date"] and "uptime" in apart_s:
+ if "date" in disagreeing and "uptime" in apart_s:

an_epoch_that_was_held_up_is_noise analysis/statistics.py: statistics training_run
- longest_s = max(_HELD_UP * median_s, median_s + _HELD_UP_S)
+ longest_s = 20 * median_s

copies_are_different_images data/eval_split.py: sources
- different = count if dataset.encoded else len(set(digests))
+ different = count

a_stop_is_not_noted hardware/telemetry/sampler.py: telemetry
- if late_s > _LATE_S and cpu_s < _STILL * late_s:
+ if late_s > 100 * _LATE_S and cpu_s < _STILL * late_s:

own_work_is_that_of_others hardware/telemetry/readers.py: telemetry
- max(0.0, cpu_percent - max(0.0, own_percent))
+ cpu_percent

baseline_without_tolerance compare.py: compare
- ratio["ratio_high"] < least
+ ratio["ratio_high"] < 1

memory_limit_is_not_in_the_key sweeps/grid.py: sweep
- "limits": sorted(self.limits),
+ "limits": [],

half_a_line_stays_in_the_results sweeps/sweep_dir.py: sweep
- file.truncate(end_of_lines(file))
+ pass

a_failed_cell_ends_with_0 sweeps/tables.py: sweep
- any(status in ("failed", "invalid", "lost") for status in statuses)
+ any(status == "invalid" for status in statuses)

## The card of a machine.

soak_ignores_what_is_late qualification/plan.py: plan
- self.total_s - after_s - passed_s
+ self.total_s - after_s

no_comparison_between_bursts microbench/repeat_check.py: repeat_check soak
- if one != self._expected[leaf]
+ if one != sums[0]

drift_of_all_windows qualification/soak.py: soak
- change_of_median(rates[:third], rates[len(rates) - third :])
+ change_of_median(rates, rates)

a_failed_part_ends_the_card qualification/run.py: run
- bench.ends[name] = ("failed", " ".join(words.split())[:500])
+ raise

memory_estimate_through_zero analysis/largest_batch.py: sweep
- batch = small + int((limit_bytes
+ batch = int((limit_bytes

own_process_is_another hardware/telemetry/nvml.py: boards
- return len(running - tree) if running & tree
+ return len(running) if running & tree

## Exit codes and what is told of an end.

bad_input_ends_with_1 cli/entry_point.py: fast_half main
- return 2, str(error)
+ return 1, str(error)

error_line_on_standard_output terminal.py: fast_half main
- print(printable(line), file=sys.stderr, flush=True)
+ print(printable(line), flush=True)

terminal_is_steered terminal.py: terminal
- letter if letter.isprintable() or
+ letter if True or

formula_in_a_cell tables/spreadsheet.py: report
- words = printable(value)
+ words = value

sigterm_ends_with_1 cli/entry_point.py: signals
- return 143, "terminated"
+ return 1, "terminated"

out_of_memory_only_at_the_beginning records/recorder.py: runner train
- if OUT_OF_MEMORY.search(message):
+ if OUT_OF_MEMORY.match(message):

a_run_with_impossible_figures_is_done records/recorder.py: runner
- if status == "done" and summary.invalid:
+ if status == "running" and summary.invalid:
"""


def _parse(text: str) -> Iterator[Mutation]:
    area = ""
    for block in text.strip().split("\n\n"):
        if block.startswith("## "):
            area = block.removeprefix("## ").rstrip(".")
            continue
        match = re.fullmatch(r"(\w+) ([\w/]+\.py): ([\w ]+)\n- (.+)\n\+ (.+)", block.strip())
        if not match:
            raise ValueError(f"no mutation: {block}")
        name, file, ask, old, new = match.groups()
        yield Mutation(area, name, file, old, new, ask)


MUTATIONS = tuple(_parse(_LIST))


def mutated(mutation: Mutation, text: str) -> str:
    """Returns a file's text with the mutation in it.

    Raises:
      ValueError: what it replaces is not there exactly once, or what comes of it does not parse.
    """
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has its text {found} times, not once")
    changed = text.replace(mutation.old, mutation.new)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise ValueError(f"{mutation.name}: {mutation.file} no longer parses: {error}") from error
    return changed


def asked_files(mutation: Mutation, checkout: pathlib.Path) -> list[str]:
    """Returns the paths of the files that a mutation asks, those of the fast half.

    Raises:
      ValueError: one of them is not there.
    """
    paths = []
    for name in mutation.ask.split():
        found = (checkout / "tests").rglob(f"test_{name}.py")
        own = [path.relative_to(checkout) for path in found if "integration" not in path.parts]
        if not own:
            raise ValueError(f"{mutation.name}: asks test_{name}.py, which is not there")
        paths += map(str, own)
    return paths


def first_failure(output: str) -> str | None:
    """Returns the test that pytest's closing lines name first as failed, None where none is."""
    match = re.search(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", output, re.MULTILINE)
    return match and match[1]


class Suite:
    """Runs the tests of a checkout with mistakes in it.

    Args:
      checkout: its root.
      timeout_s: what one call of pytest may take.
      deselected: tests that are left out.
    """

    def __init__(self, checkout: pathlib.Path, timeout_s: float, deselected: Sequence[str]):
        self._checkout = checkout
        self._timeout_s = timeout_s
        self._deselected = [f"--deselect={test}" for test in deselected]
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=checkout,
            capture_output=True,
            check=True,
            text=True,
        )
        self._files = sorted(filter(None, listed.stdout.split("\0")))
        # Where the tests themselves have it, see conftest.py.
        own = checkout / ".pytest_cache" / "d" / f"xla-jax-{metadata.version('jax')}"
        self._cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(own))

    def run(self, mutation: Mutation | None, *calls: Sequence[str]) -> tuple[int | None, str]:
        """Calls pytest with each list of arguments in turn, as long as nothing fails.

        Returns:
          The number of the call in which a test failed, and that test; None and why nothing did.
        """
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            copy = pathlib.Path(folder)
            for name in self._files:
                if (self._checkout / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self._checkout / name, copy / name)
            if mutation:
                path = copy / "jaxbench" / mutation.file
                path.write_text(mutated(mutation, path.read_text()))
            why = "survived"
            for number, arguments in enumerate(calls):
                test, why = self._call_pytest(copy, arguments)
                if test:
                    return number, test
                if why != "survived":
                    break
            return None, why

    def _call_pytest(self, copy: pathlib.Path, arguments: Sequence[str]) -> tuple[str | None, str]:
        from jaxbench.parallel.child import run_child

        search = os.pathsep.join(filter(None, (str(copy), os.environ.get("PYTHONPATH"))))
        log = copy / "pytest.log"
        ending = run_child(
            [
                *(shutil.which("env"), "-C", str(copy), f"PYTHONPATH={search}"),
                *(f"JAX_COMPILATION_CACHE_DIR={self._cache}", sys.executable, "-m", "pytest"),
                *("-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"),
                *(f"--ignore={test}" for test in _OWN_TESTS),
                *(*self._deselected, *arguments),
            ],
            log,
            timeout_s=self._timeout_s,
        )
        output = log.read_text(errors="replace")
        if ending.status == "timeout":
            return None, f"no answer within {self._timeout_s:g} s"
        if (test := first_failure(output)) or ending.exit_code in (0, 1):
            return test, "survived"
        return None, f"pytest ended with exit code {ending.exit_code}"


def summarize(records: Sequence[dict], whole_half: bool = True) -> tuple[str, int]:
    """Returns the closing line and the exit code."""
    caught = sum(record["half"] == "fast" for record in records)
    line = f"fast half: {caught} of {len(records)} caught"
    if not whole_half:
        line = f"asked files: {caught} of {len(records)} caught"
    later = [record["name"] for record in records if record["half"] == "integration"]
    missed = [record["name"] for record in records if not record["half"]]
    line += f"; integration half alone: {', '.join(later)}" if later else ""
    line += f"; not caught: {', '.join(missed)}" if missed else ""
    return line, int(caught < GOAL * len(records))


def main() -> None:
    from absl import flags

    from jaxbench.cli import entry_point
    from jaxbench.clock import Stopwatch
    from jaxbench.errors import BadInput, nearest

    only = flags.DEFINE_list("only", None, "Some of the mutations.")
    listed = flags.DEFINE_bool("list", False, "Show the mutations and run nothing.")
    path = flags.DEFINE_string("json", None, "Where the records go; is overwritten.")
    jobs = flags.DEFINE_integer("jobs", 1, "Mutations at a time.", lower_bound=1)
    integration = flags.DEFINE_bool("integration", False, "Ask the integration half at last.")
    asked_only = flags.DEFINE_bool("asked_only", False, "Ask no more than the asked files.")
    checked = flags.DEFINE_bool("checked", False, "The asked files are known to pass.")
    timeout_s = flags.DEFINE_float("timeout_s", 1200, "Of one call of pytest.", lower_bound=1)
    deselect = flags.DEFINE_multi_string("deselect", [], "A test to leave out.")
    checkout = flags.DEFINE_string("checkout", str(ROOT), "Whose tests are run, on whose code.")

    def chosen() -> list[Mutation]:
        names = [mutation.name for mutation in MUTATIONS]
        if only.value == []:
            raise BadInput("--only=: give mutations' names, separated by commas (--list has them)")
        for name in only.value or ():
            if name not in names:
                raise BadInput(f"--only={name}: no such mutation{nearest(name, names)}")
        return [m for m in MUTATIONS if m.name in (only.value or names)]

    def run(rest: list[str]) -> int:
        if rest:
            raise BadInput(f"{rest[0]!r}: flags begin with --")
        mutations = chosen()
        if listed.value:
            for mutation in mutations:
                print(f"{mutation.name:<40} {mutation.file}: {mutation.new.strip()}")
            return 0
        root = pathlib.Path(checkout.value).expanduser().resolve()
        try:
            asked = {mutation.name: asked_files(mutation, root) for mutation in mutations}
            for mutation in mutations:
                mutated(mutation, (root / "jaxbench" / mutation.file).read_text())
            suite = Suite(root, timeout_s.value, deselect.value)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise BadInput(f"--checkout={checkout.value}: {error}") from error
        if not checked.value:
            calls = [sorted({file for files in asked.values() for file in files})]
            calls += [] if asked_only.value else [[]]
            calls += [["-m", _INTEGRATION]] if integration.value else []
            if (failed := suite.run(None, *calls))[1] != "survived":
                raise BadInput(f"without a mutation: {failed[1]}; --deselect=TEST leaves it out")

        def try_one(mutation: Mutation) -> dict:
            calls, halves = [["-n0", *asked[mutation.name]]], ["fast"]
            if not asked_only.value:
                calls, halves = [*calls, []], ["fast", "fast"]
            if integration.value:
                calls, halves = [*calls, ["-m", _INTEGRATION]], [*halves, "integration"]
            watch = Stopwatch()
            number, told = suite.run(mutation, *calls)
            return {
                "area": mutation.area,
                "name": mutation.name,
                "file": mutation.file,
                "half": None if number is None else halves[number],
                "asked": number == 0,
                "test": None if number is None else told,
                "reason": told if number is None else None,
                "seconds": watch.elapsed_s(),
            }

        records = []
        with concurrent.futures.ThreadPoolExecutor(jobs.value) as pool:
            # One at a time without a thread, so that Ctrl-C ends pytest too.
            for record in (pool.map if jobs.value > 1 else map)(try_one, mutations):
                records.append(record)
                told = record["reason"] or f"caught by {record['test']}"
                print(f"{record['name']:<40} {record['seconds']:6.1f} s  {told}", flush=True)
                if path.value:
                    pathlib.Path(path.value).write_text(json.dumps(records, indent=1) + "\n")
        for area in dict.fromkeys(record["area"] for record in records):
            own = [record for record in records if record["area"] == area]
            fast = sum(record["half"] == "fast" for record in own)
            print(f"{area:<50} {len(own):3} mistakes, {fast:3} caught by the fast half")
        line, code = summarize(records, not asked_only.value)
        print(line)
        return code

    entry_point.run_with_arguments(run)


if __name__ == "__main__":
    main()
