"""The forkserver's preload module: importing it turns the forkserver into the zygote."""

from launch.rank.zygote import warm_up

warm_up()
