"""Where each value of a published recipe comes from: `preset_texts` writes it behind the value.

A table a config file: presets, keys, source; columns are two spaces apart or more, patterns are those
of the shell, and the first row that fits counts. NAME:N is line N of the file NAME in the repository,
at the commit, that the table opens with. A new value without a row is an error.
"""

import fnmatch
import re

# What no source has to say.
OURS = """
*  checkpoint_every_steps,eval_every_epochs,eval_every_steps  ours: how often to save and to look
*  model.dtype  ours: products in bfloat16, sums of gradients in float32
*  note  ours
*  model.name,model.num_classes,data.num_classes  as the arguments say
*  data.source,data.num_train_examples,data.eval_split  as the arguments say
"""

BIG_VISION_PIXELS = """
*  data.antialias  pp/ops_image.py get_resize at 4a12790: no antialiasing
*  data.eval_interpolation  pp/ops_image.py get_resize_small at 4a12790: by area
"""

DEIT = """
*  batch_size  README_deit.md, Training: 4 GPUs x 256
*  total_epochs  main.py --epochs 300
*  warmup_epochs  main.py --warmup-epochs 5
*  schedule.warmup_start  main.py --warmup-lr 1e-6
*  schedule.end  main.py --min-lr 1e-5
*  optimizer.weight_decay  main.py --weight-decay 0.05
*  optimizer.b1,optimizer.b2  main.py --opt-betas None: AdamW's own
*  objective.label_smoothing  main.py --smoothing 0.1
*  objective.mixing.mixup_alpha  main.py --mixup 0.8
*  objective.mixing.cutmix_alpha  main.py --cutmix 1.0
*  objective.mixing.form  main.py --mixup-switch-prob 0.5, timm's Mixup
*  model.stochastic_depth_rate  main.py --drop-path 0.1
*  model.gelu  models.py: timm 0.3.2, nn.GELU
*  model.kernel_std,model.position_std  models.py: timm 0.3.2, trunc_normal_ of 0.02
*  model.image_size  main.py --input-size 224
*  data.train_crop  datasets.py build_transform: timm's create_transform
*  data.augmentation  main.py --aa rand-m9-mstd0.5-inc1 --reprob 0.25
*  data.repeated_augmentation  main.py --repeated-aug; samplers.py RASampler: 3
*  data.interpolation  main.py --train-interpolation bicubic
*  data.mean,data.std  datasets.py build_transform: ImageNet's
*  data.eval_crop  datasets.py build_transform: Resize to 256 / 224 of the size, CenterCrop
"""

# Keys that a command of DeiT-III has a flag for.
FLAGS = (
    "batch_size,total_epochs,warmup_epochs,schedule.warmup_start,optimizer.name,"
    "optimizer.learning_rate,optimizer.weight_decay,model.image_size,data.eval_resize,"
    "model.stochastic_depth_rate,objective.loss,objective.label_smoothing,"
    "objective.mixing.mixup_alpha,objective.mixing.cutmix_alpha,data.augmentation,"
    "data.repeated_augmentation,data.train_crop"
)
# Keys that a data set's file in task_adaptation/data has: the lines of `test` and `val200`, then the label's.
SPLITS = "data.train_split,data.eval_split,sweep.*_split"
LABEL = "data.label,data.num_classes"
PAPER_400 = "the paper's table of hyper-parameters, 400 epochs"

TABLES = {
    "deit": "github.com/facebookresearch/deit at b001f95\n" + DEIT,
    "deit3": f"""github.com/facebookresearch/deit at b001f95
h14,*0  model.image_size,data.eval_resize  what 14 px patches cover of 160 and 128 px, below
?16,400  optimizer.weight_decay,model.stochastic_depth_rate  {PAPER_400}
h14,400  optimizer.weight_decay,model.stochastic_depth_rate  {PAPER_400}
*,400,finetune  model.stochastic_depth_rate  {PAPER_400}
*,400  total_epochs  {PAPER_400}
s16,90  model.stochastic_depth_rate  the paper's Table 13
s16,[48]00  {FLAGS}  README_revenge.md:81
b16,[48]00  {FLAGS}  README_revenge.md:412
l16,[48]00  {FLAGS}  README_revenge.md:745
h14,[48]00  {FLAGS}  README_revenge.md:1078
b16,[48]00,finetune  {FLAGS}  README_revenge.md:1411
l16,[48]00,finetune  {FLAGS}  README_revenge.md:1432
h14,[48]00,finetune  {FLAGS}  README_revenge.md:1453
s16,*,finetune384  {FLAGS}  README_revenge.md:1475
b16,*,finetune384  {FLAGS}  README_revenge.md:1495
l16,*,finetune384  {FLAGS}  README_revenge.md:1515
[sbl]16,90  total_epochs  the paper's 90 epochs
h14,240  total_epochs  as for the other models: the authors train it for 90
s16,*0  {FLAGS}  README_revenge.md:1539
b16,*0  {FLAGS}  README_revenge.md:1648
l16,*0  {FLAGS}  README_revenge.md:1756
h14,*0  {FLAGS}  README_revenge.md:1866
s16,*,finetune  {FLAGS}  README_revenge.md:1917
b16,*,finetune  {FLAGS}  README_revenge.md:1949
l16,*,finetune  {FLAGS}  README_revenge.md:1982
h14,*,finetune  {FLAGS}  README_revenge.md:2015
*  schedule.end  main.py --min-lr 1e-5
*  optimizer.b1,optimizer.b2  main.py --opt-betas None: the optimiser's own
*  optimizer.grad_clip_norm  --opt fusedlamb: Apex's FusedLAMB clips at 1 by itself
*  objective.mixing.form  main.py --mixup-switch-prob 0.5, timm's Mixup
*  model.stochastic_depth_schedule  models_v2.py vit_models: dpr, one rate
*  model.layer_scale  models_v2.py vit_models: init_scale 1e-4
*  model.prefix_positions  models_v2.py vit_models.forward_features: cls after pos_embed
*  model.gelu  models_v2.py vit_models: act_layer nn.GELU
*  model.kernel_std,model.position_std  models_v2.py vit_models: trunc_normal_ of 0.02
*  data.interpolation  augment.py new_data_aug_generator: bicubic
*  data.mean,data.std  augment.py new_data_aug_generator: ImageNet's
*  data.eval_crop  README_revenge.md: --eval-crop-ratio 1.0
*  init  ours: the stage before
*  init_position_resize  main.py: interpolate, bicubic
""",
    "augreg": """github.com/google-research/big_vision, big_vision/configs at 5f95305, vit_i21k.py at 2f3f493
*,imagenet2012  data.augmentation,objective.mixing.mixup_alpha  vit_i1k.py:77, 42, 52
*,imagenet2012,*  data.augmentation,objective.mixing.mixup_alpha  vit_i1k.py:42, 52; the paper's Figure 4
*,imagenet21k*  data.augmentation,objective.mixing.mixup_alpha  vit_i21k.py:56, 27, 37
*wd0.03*  optimizer.weight_decay  section 3.4 of the paper: 0.03 or 0.1
*imagenet2012*  objective.loss  vit_i1k.py:71
*imagenet2012*  model.head_bias  vit_i1k.py:72
*imagenet2012*  data.train_split  vit_i1k.py:89
*imagenet2012*  model.representation_size  vit_i1k.py:123
*  model.position_std  models/vit.py get_posemb: 1 / sqrt(width)
*  model.prefix_positions  models/vit.py: cls is put before after posemb is added
*imagenet2012*  batch_size  vit_i1k.py:91
*imagenet2012*  total_epochs  vit_i1k.py:69
*imagenet2012*  warmup_steps  vit_i1k.py:141
*imagenet2012*  optimizer.weight_decay  vit_i1k.py:140 over 139
*imagenet2012*  optimizer.momentum_dtype  vit_i1k.py:130
*imagenet2012*  optimizer.grad_clip_norm  vit_i1k.py:128
*imagenet2012*  model.image_size  vit_i1k.py:101
*imagenet2012*  data.eval_crop  vit_i1k.py:105
*  objective.loss  vit_i21k.py:69
*  model.head_bias  vit_i21k.py:68
*  batch_size  vit_i21k.py:71
*  total_epochs  vit_i21k.py:72
*  warmup_steps  vit_i21k.py:99
*  optimizer.weight_decay  vit_i21k.py:98 over 97
*  optimizer.momentum_dtype  vit_i21k.py:94
*  optimizer.grad_clip_norm  vit_i21k.py:95
*  model.image_size  vit_i21k.py:75
*  data.eval_crop  vit_i21k.py:76
*  model.dropout_rate,model.stochastic_depth_rate  section 3.3 of the paper: 0.1
"""
    + BIG_VISION_PIXELS,
    "plain_vit": """github.com/google-research/big_vision, big_vision/configs at 2f3f493
300  total_epochs  vit_s16_i1k.py:27
150  total_epochs  the paper's Table 1
*  total_epochs  vit_s16_i1k.py:44
*  batch_size  vit_s16_i1k.py:43
*  data.train_split  vit_s16_i1k.py:38
*  data.augmentation,model.image_size  vit_s16_i1k.py:52
*  data.eval_crop  vit_s16_i1k.py:55
*  objective.mixing.mixup_alpha  vit_s16_i1k.py:78
*  model.representation_size  vit_s16_i1k.py:64
*  model.pooling  vit_s16_i1k.py:65
*  model.positions  vit_s16_i1k.py:66
*  optimizer.grad_clip_norm  vit_s16_i1k.py:70
*  optimizer.momentum_dtype  vit_s16_i1k.py:72
*  optimizer.weight_decay  vit_s16_i1k.py:75 over 74
*  warmup_steps  vit_s16_i1k.py:76
"""
    + BIG_VISION_PIXELS,
    "mixer": """github.com/google-research/big_vision, big_vision/configs at 1c965d1
*  total_epochs  mlp_mixer_i1k.py:58
*  batch_size  mlp_mixer_i1k.py:57
*  data.train_split  mlp_mixer_i1k.py:35
*  data.augmentation  mlp_mixer_i1k.py:44
*  model.image_size  mlp_mixer_i1k.py:42
*  data.eval_crop  mlp_mixer_i1k.py:51
*  objective.loss  mlp_mixer_i1k.py:39
*  model.head_bias  mlp_mixer_i1k.py:38
*  model.stochastic_depth_rate  mlp_mixer_i1k.py:72
*  objective.mixing.mixup_alpha  mlp_mixer_i1k.py:74
*  optimizer.grad_clip_norm  mlp_mixer_i1k.py:78
*  optimizer.weight_decay  mlp_mixer_i1k.py:81 over 80
*  schedule.name  mlp_mixer_i1k.py:83
*  warmup_steps  mlp_mixer_i1k.py:84
*  schedule.end  mlp_mixer_i1k.py:85 times 80
"""
    + BIG_VISION_PIXELS,
    "sam": """github.com/google-research/big_vision, big_vision/configs/proj/gsam at 136deda
*  batch_size  vit_i1k_gsam_no_aug.py:41
*  total_epochs  vit_i1k_gsam_no_aug.py:42
*  data.train_split  vit_i1k_gsam_no_aug.py:36
*  model.image_size  vit_i1k_gsam_no_aug.py:50
*  data.eval_crop  vit_i1k_gsam_no_aug.py:53
*  objective.loss  vit_i1k_gsam_no_aug.py:40
*  model.pooling  vit_i1k_gsam_no_aug.py:69
*  model.head_bias  vit_i1k_gsam_no_aug.py:71
*  model.position_std  models/vit.py get_posemb: 1 / sqrt(width)
*  optimizer.grad_clip_norm  vit_i1k_gsam_no_aug.py:74
*  optimizer.learning_rate  vit_i1k_gsam_no_aug.py:85
*  optimizer.weight_decay  vit_i1k_gsam_no_aug.py:86 over 85
*  warmup_steps  vit_i1k_gsam_no_aug.py:88
*  schedule.name  vit_i1k_gsam_no_aug.py:89
*  schedule.end  vit_i1k_gsam_no_aug.py:90 times 85
*  optimizer.sharpness.rho  vit_i1k_gsam_no_aug.py:96
*  optimizer.sharpness.rho_min  vit_i1k_gsam_no_aug.py:97
*  optimizer.sharpness.alpha  vit_i1k_gsam_no_aug.py:98
*  optimizer.sharpness.shares  ours: the number of workers is not published
"""
    + BIG_VISION_PIXELS,
    "scaling_vit": """github.com/google-research/big_vision, big_vision/configs/proj/scaling_laws at 2f3f493
*  batch_size  train_vit_g.py:44
*  total_steps  train_vit_g.py:81
*  warmup_steps,schedule.name,schedule.timescale  train_vit_g.py:79
*  cooldown_steps  train_vit_g.py:80
*  model.image_size  train_vit_g.py:49
*  data.eval_crop  train_vit_g.py:50
*  objective.loss  train.py's default: sigmoid_xent
*  model.pooling  train_vit_g.py:67
*  model.head_bias  train_vit_g.py:41
*  model.position_std  models/vit.py get_posemb: 1 / sqrt(width)
*  optimizer.name  train_vit_g.py:70
*  optimizer.b2,optimizer.momentum,optimizer.momentum_dtype  optax.py scale_by_adafactor's defaults
*  optimizer.grad_clip_norm  train_vit_g.py:71
*  optimizer.learning_rate  train_vit_g.py:72
*  optimizer.weight_decay  train_vit_g.py:73 over 72
*  optimizer.decay_multipliers  train_vit_g.py:74
"""
    + BIG_VISION_PIXELS,
    "mae": """github.com/facebookresearch/mae at be47fef
*,pretrain  batch_size,total_epochs,warmup_epochs,optimizer.*,data.train_crop  the paper's Table 8
*,probe  batch_size,total_epochs,warmup_epochs,optimizer.*,data.train_crop  the paper's Table 10
*,finetune  batch_size,total_epochs,optimizer.*,model.stochastic_depth_rate  FINETUNE.md, the model's command
*,finetune  data.augmentation,objective.mixing.*_alpha  FINETUNE.md, the model's command
*,finetune  warmup_epochs  main_finetune.py --warmup_epochs 5
*,finetune  schedule.end  main_finetune.py --min_lr 1e-6
*,finetune  objective.label_smoothing  main_finetune.py --smoothing 0.1
*,finetune  objective.mixing.form  main_finetune.py --mixup_switch_prob 0.5, timm's Mixup
*,finetune  data.train_crop  util/datasets.py build_transform
*,finetune  model.pooling,model.class_token,model.norm_after_pooling  models_vit.py: global_pool, fc_norm
*,finetune  model.positions,init_skip  models_vit.py: pos_embed is a parameter, fc_norm is new
*,pretrain  model.kernel_std  models_mae.py initialize_weights: xavier_uniform_
*,pretrain  objective.name,objective.mask_ratio,objective.normalize_patches  PRETRAIN.md, the command
*,pretrain  objective.decoder_*  models_mae.py: 512 wide, 8 blocks, 16 heads
*,pretrain  objective.*  not of this objective
*,pretrain  model.positions  models_mae.py: pos_embed, fixed
*,probe  model.positions  models_mae.py: pos_embed, frozen
*,probe  model.head_norm  main_linprobe.py: BatchNorm1d without affine, eps 1e-6
*,probe  model.kernel_std  main_linprobe.py: trunc_normal_ of 0.01
*  model.gelu  timm 0.3.2, nn.GELU
*  model.image_size  main_*.py: 224
*  data.interpolation,data.eval_crop  util/datasets.py build_transform: bicubic, 256 then 224
*  data.mean,data.std  main_*.py: ImageNet's
*  init  ours: the stage before
""",
    "distill": """github.com/facebookresearch/deit at b001f95; big_vision/configs/proj/distill at 2f3f493
*,patient  batch_size  bit_i1k.py:46
*,patient  total_epochs  bit_i1k.py:47
*,patient  warmup_steps  bit_i1k.py:89
*,patient  data.train_split  bit_i1k.py:43
*,patient  data.eval_crop  bit_i1k.py:74
*,patient  model.image_size  bit_i1k.py:71
*,patient  objective.kind,objective.temperature  bit_i1k.py:79, 80
*,patient  objective.teacher_weight  distill.py of trainers/proj: the teacher alone
*,patient  objective.mixing.mixup_alpha  bit_i1k.py:76
*,patient  optimizer.grad_clip_norm  bit_i1k.py:83
*,patient  optimizer.momentum_dtype  bit_i1k.py:85
*,patient  optimizer.learning_rate  bit_i1k.py:87
*,patient  optimizer.weight_decay  bit_i1k.py:88 over 87
*,deit  model.distillation_token  models.py DistilledVisionTransformer
*,deit  objective.kind  README_deit.md: --distillation-type hard
*,deit  objective.teacher_weight  main.py --distillation-alpha 0.5
*,deit  objective.temperature  not of hard labels
*  objective.name,objective.teacher_dtype  ours
*  objective.loss  not of this objective
"""
    + BIG_VISION_PIXELS
    + DEIT,
    "finetune": """big_vision/configs at 2f3f493; github.com/google-research/vision_transformer at 2ecbc73
*imagenet2012,384*  model.image_size  Table 5 of the paper: 384 px
h14,*  model.image_size,data.eval_resize,data.train_crop  whole patches of 384 px; of 448 / 384 of that
*imagenet2012  model.image_size  appendix B.1.1 of the paper: 512 px; 518 for patches of 14
*imagenet2012  ema_decay  appendix B.1.1 of the paper: 0.9999
*imagenet2012  ema_warmup  as the paper's plain average
*cifar*  data.train_crop,data.interpolation  transfer.py:96: resmall_crop
*  data.eval_crop,data.eval_interpolation,data.eval_resize  transfer.py:106
*  data.antialias  input_pipeline.py; pp/ops_image.py get_resize at 4a12790
*cifar100*  total_steps,warmup_steps  transfer.py:62
*cifar10*  total_steps,warmup_steps  transfer.py:60
*imagenet2012*  total_steps,warmup_steps  transfer.py:64
*pet*  total_steps,warmup_steps  transfer.py:67
*flowers*  total_steps,warmup_steps  transfer.py:69
*cifar100*  optimizer.learning_rate  transfer.py:24
*cifar10*  optimizer.learning_rate  transfer.py:23
*imagenet2012*  optimizer.learning_rate  transfer.py:22
*pet*  optimizer.learning_rate  transfer.py:25
*flowers*  optimizer.learning_rate  transfer.py:26
*  sweep.*  Table 4 of the paper, and its development splits
*  model.image_size  transfer.py:58, l_res
*  batch_size  Table 4 of the paper: 512
*  optimizer.name,optimizer.momentum  Table 4 of the paper: SGD, momentum 0.9
*  optimizer.momentum_dtype  configs/common.py:43
*  optimizer.grad_clip_norm  configs/common.py:41
*  model.dropout_rate  configs/models.py get_l16_config, get_h14_config, get_r50_b16_config
*  init  the paper's weights, or the nearest to them, on the Hub
""",
    "vit": """arXiv 2010.11929; github.com/google-research/big_vision at 2f3f493
*  batch_size,total_epochs,warmup_steps,schedule.name,optimizer.learning_rate  Table 3
*  optimizer.weight_decay,model.dropout_rate  Table 3
*  optimizer.b1,optimizer.b2  section 4.1
*  optimizer.grad_clip_norm  appendix B.1, of ImageNet; else configs/vit_i21k.py:95
*  objective.loss,model.head_bias  configs/vit_i21k.py:69, 68
*  model.representation_size  section 3.1: an MLP with one hidden layer
*  model.image_size  Table 3: 224 px
*  data.eval_crop  configs/vit_i21k.py:76
"""
    + BIG_VISION_PIXELS,
    "bit": """arXiv 2010.11929; arXiv 1912.11370; big_vision/configs at 33f66f1; Big Transfer's files in vision_transformer at c1b0946
*,hyperrule  total_steps,warmup_steps,schedule.*  bit_hyperrule.py:40; :61 drops one update later
*,hyperrule  optimizer.learning_rate  bit_hyperrule.py:49: 0.003
*,hyperrule  objective.mixing.mixup_alpha  bit_hyperrule.py:37
*,hyperrule  data.train_crop,model.image_size  bit_hyperrule.py:18
*,hyperrule  batch_size,optimizer.*  section 3.3 of 1912.11370: 512, SGD with momentum 0.9
*,hyperrule  data.antialias  input_pipeline_tf2_or_jax.py
*,hyperrule  init  the paper's weights on the Hub
*,sgd  total_epochs,schedule.*,warmup_steps,batch_size  section 3.3 of 1912.11370
*,sgd  optimizer.name,optimizer.momentum*,optimizer.learning_rate  section 3.3 of 1912.11370
*,sgd  optimizer.weight_decay  section 3.3 of 1912.11370: 1e-4, over 1 - 0.9
*,sgd  objective.loss,model.head_bias  bit_i21k.py:35, 34
*  batch_size,total_epochs,warmup_steps,schedule.name,optimizer.learning_rate  Table 3 of 2010.11929
*  optimizer.weight_decay  Table 3 of 2010.11929
*  optimizer.b1,optimizer.b2  section 4.1 of 2010.11929
*  optimizer.grad_clip_norm,objective.loss,model.head_bias  as configs/vit.py
*  model.image_size  224 px, of both papers
*  data.eval_crop  bit_i21k.py:45
"""
    + BIG_VISION_PIXELS,
    "vtab": f"""arXiv 2010.11929; github.com/google-research/task_adaptation at ed9b417, task_adaptation/data
*  batch_size,total_steps,optimizer.learning_rate  appendix B.1.1: 512, 2,500 steps, 0.01
*  optimizer.name,optimizer.momentum  appendix B.1.1: SGD, momentum 0.9
*  optimizer.momentum_dtype,optimizer.grad_clip_norm  vision_transformer's configs/common.py:43, 41
*  warmup_steps  Scenic's vtab_plainvit_config.py:138 at 03c3032
caltech101*  {SPLITS}  caltech.py:72, 74
cifar100*  {SPLITS}  cifar.py:75, 77
dtd*  {SPLITS}  dtd.py, dtd_test.py
oxford_flowers102*  {SPLITS}  oxford_flowers102.py:72, 74
oxford_iiit_pet*  {SPLITS}  oxford_iiit_pet.py:67, 69
sun397*  {SPLITS}  sun397.py:43, 46
svhn*  {SPLITS}  svhn.py:78, 82
camelyon*  {SPLITS}  patch_camelyon.py:37, 42
eurosat*  {SPLITS}  eurosat.py:59, 63
resisc45*  {SPLITS}  resisc45.py:59, 63
retinopathy*  {SPLITS}  diabetic_retinopathy.py:65, 67
clevr_*  {SPLITS}  clevr.py:107, 109
dmlab*  {SPLITS}  dmlab.py, dmlab_test.py
dsprites_*  {SPLITS}  dsprites.py:87, 89
kitti_*  {SPLITS}  kitti.py:179, 181
smallnorb_*  {SPLITS}  smallnorb.py:59, 61
clevr_count*  {LABEL}  clevr.py:34, 59
clevr_distance*  {LABEL}  clevr.py:50, 67
dsprites_*  {LABEL}  dsprites.py:99; 16 classes: scripts/run_all_tasks.sh
kitti_*  {LABEL}  kitti.py:95, 101, 149
smallnorb_*  {LABEL}  smallnorb.py:66; scripts/run_all_tasks.sh
*  sweep.learning_rates  arXiv 2106.10270
*  data.train_crop,data.flip  Scenic's vtab_plainvit_config.py vtab_b_tasks at 03c3032
*  model.image_size  appendix B.1.1: 384 px
*  data.antialias  vision_transformer's input_pipeline.py
*  init  the paper's weights on the Hub
""",
    "masked_patches": """arXiv 2010.11929; github.com/google-research/big_vision at 2f3f493
*  batch_size,total_steps,warmup_steps,optimizer.learning_rate  appendix B.1.2
*  objective.target,objective.corruption_rate  appendix B.1.2
*  optimizer.grad_clip_norm  as the paper's other pre-training
*  model.image_size  224 px
*  data.eval_crop  configs/vit_i21k.py:76
*  objective.name  ours
*  objective.*  not of this objective
"""
    + BIG_VISION_PIXELS,
}


def where(config: str) -> str:
    """The repositories that a config file's lines are of; "" for a file without published values."""
    return TABLES[config].partition("\n")[0] if config in TABLES else ""


def rows_of(config: str) -> list[tuple[str, str, str]]:
    """The presets, keys and source of each row for a config file."""
    text = TABLES[config].partition("\n")[2] + OURS
    return [tuple(re.split(r" {2,}", row, maxsplit=2)) for row in text.splitlines() if row]


def row_of(config: str, arguments: str, key: str) -> tuple[str, str, str]:
    """The row that says where a preset's value of `key` comes from; KeyError where none does."""
    for row in rows_of(config):
        presets, keys, _ = row
        fits = any(fnmatch.fnmatch(key, pattern) for pattern in keys.split(","))
        if fits and fnmatch.fnmatch(arguments, presets):
            return row
    raise KeyError(f"tests/preset_sources.py: {config}, {arguments}: no source of {key}.")
