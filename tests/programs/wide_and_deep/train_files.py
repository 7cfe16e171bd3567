"""The program of PaddlePaddle's later quick start of parameter servers, which trains from files by datasets.

`train_files.py WAY DIR`: QueueDataset, InMemoryDataset, or loader; the first worker saves in DIR.
"""

import sys
from pathlib import Path

import paddle
import paddle.distributed.fleet as fleet
from model import WideDeepModel
from slots import read_line

way, into = sys.argv[1:]
paddle.enable_static()
fleet.init(is_collective=False)
model = WideDeepModel()
model.net(is_train=True)
fleet.distributed_optimizer(paddle.optimizer.SGD(0.2), fleet.DistributedStrategy()).minimize(model.cost)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    files = fleet.util.get_file_shard([f"data/{i}.txt" for i in range(4)])
    main = paddle.static.default_main_program()

    def read():
        for name in files:
            with Path(name).open() as lines:
                yield from map(read_line, lines)

    if way == "loader":
        model.loader.set_sample_list_generator(paddle.batch(read, 32))
        model.loader.start()
        try:
            while True:
                exe.run(main)
        except paddle.core.EOFException:
            model.loader.reset()
    else:
        dataset = getattr(paddle.distributed, way)()
        dataset.init(batch_size=32, thread_num=2, use_var=model.inputs, pipe_command="python slots.py")
        dataset.set_filelist(files)
        if way == "InMemoryDataset":
            dataset.load_into_memory()
        exe.train_from_dataset(
            main,
            dataset,
            paddle.static.global_scope(),
            debug=False,
            fetch_list=[model.auc],
            fetch_info=["AUC"],
            print_period=3,
        )
    fleet.barrier_worker()
    if fleet.is_first_worker():
        fleet.save_persistables(exe, into)
    fleet.stop_worker()
