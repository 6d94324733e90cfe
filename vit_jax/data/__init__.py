"""From files to batches on the devices.

The way from `config.data.source` to a batch, from the top; what is indented is used by what stands
above it.

    dataset               a run's training examples, and their batches
    evaluation_data       splits as a model is evaluated on them
      sources/            where examples come from: random access to one split
        registry          config.data.source -> a source
          folder          images in class folders       listing: found once and kept in an index
          contents        what in a folder is data
          manifest        a table of images and labels  names: millions of file names in two arrays
          columns         what its columns are called   targets: columns of numbers
          tar             images in tar files           shards, tar_members, tar_samples
          parquet         columns of Parquet files      parquet_columns, parquet_values, parquet_pages
          hugging_face    such files on the Hub
          python          objects of the user
          tfds            TensorFlow Datasets           tfrecord, labels
          arrays          what fits into memory
          records         parts of large files, read where a record_index says that they lie
        split_names       what splits are called        split_expressions: train[:98%]+test
        holding_out       where there is none for evaluation
        splits, views     classes and other parts of a source
        exclusions        config.data.exclude
        examples          what an example and a source are
        label_reading     labels that are not at hand
      images/             an encoded file -> uint8 pixels
        transforms        what happens to a training and to an evaluation image
          picture         any format                    jpeg, png, tiff; limits: before decoding
          values          numbers that are no pixels yet: 12 bits, floats
          crops, resizing               area
          augmentation    with randaugment_tf and pillow_policies
      loading/            examples -> batches
        pipeline          the same for any number of processes, threads and workers
          order           which example stands where, and its random numbers
          chunks          a few rows of a batch
            read_ahead    their files, from a store, before they are asked for
        cache             images that stay decoded in memory

Elsewhere here: classes (data labelled for a trained model), balance (of classes, in the loss and in
the order), images/sheet (pictures of images), split_checks (what a run is told of its
splits), picture_files (what `predict` is given), supply (whether a host loads as many images as devices
take).
Files and URLs are `vit_jax.storage`'s, crops and augmentations as text `vit_jax.grammar`'s.
"""

import cv2

cv2.setNumThreads(0)  # The pipeline's own threads are enough.
