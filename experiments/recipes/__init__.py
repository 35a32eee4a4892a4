"""Scripts that make the bundled models, their cards, precomputed explorer answers and the pictures in docs/.

bundled_models.sh     `small` and `words`, or the package `large`, from raw text (pretraining_text, other_case,
                      vocabulary, model_card)
example_models.sh     the models of `relmo explore` (hello_models; the translation models:
                      experiments/seq2seq_results)
task_models.sh        the packages of task models
explorer_answers      precomputed answers of the explorer
agreement_figures     those of number agreement
explorer_screens, readme_pictures     pictures
split_pairs           training and held-out pairs of a parallel file
"""
